"""Sends readings at a steady rate and ends: ``python readings.py FEED EVENTS EVENTS_PER_S``.

One in a thousand is no reading at all.
"""

from __future__ import annotations

import sys
import time

from chaos.instance import end_with_parent

HOMES = 1_000
PAUSE_S = 0.1
BAD = b"not a reading"


def main(url: str, events: int, events_per_s: float) -> None:
    end_with_parent()
    import numpy as np  # noqa: PLC0415

    from leasehold.feeds import open_sender  # noqa: PLC0415

    feed, chance, number = open_sender(url), np.random.default_rng(7), 0
    began = time.monotonic()
    while number < events:
        due = min(int((time.monotonic() - began) * events_per_s) + 1, events)
        homes = chance.integers(0, HOMES, due - number)
        minutes = number // 2000 + chance.integers(0, 3, due - number)
        bodies = [
            BAD if (number + i) % 1000 == 999 else b'{"home_id":"H%d","value":1.0,"ts":%d}' % pair
            for i, pair in enumerate(zip(homes, minutes * 60_000, strict=True))
        ]
        feed.send_columns([f"H{home}" for home in homes], bodies)
        number = due
        time.sleep(PAUSE_S)
    feed.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
