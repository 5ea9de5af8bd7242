"""A steady producer as a process of its own: ``python producer.py FEED LOG EVENTS_PER_S``.

It numbers its events from 0 on and writes down up to where they are stored. SIGTERM ends it between
two sends.
"""

from __future__ import annotations

import json
import signal
import sys
import time

from chaos.instance import Log, end_with_parent

KEYS = 97
PAUSE_S = 0.05


def main(url: str, log_path: str, events_per_s: str) -> None:
    end_with_parent()
    from leasehold.feeds import open_sender  # noqa: PLC0415 - as in instance.py

    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    log, feed, number = Log(log_path), open_sender(url), 0
    began = time.monotonic()
    while not ended:
        due = int((time.monotonic() - began) * float(events_per_s))
        numbers = range(number, due)
        if numbers:
            feed.send_columns(
                [f"key-{n % KEYS}" for n in numbers],
                [json.dumps({"number": n, "fill": "x" * (n % 200)}) for n in numbers],
            )
            number = due
            log.write(number)
        time.sleep(PAUSE_S)
    feed.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
