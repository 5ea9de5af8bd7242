"""One instance of a deployment unit as a process of its own: ``python -m chaos.unit '{…}'``."""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from chaos.instance import REPLACED, Log, end_with_parent

import leasehold as lh


def main() -> None:
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)
    said: dict[str, Any] = json.loads(sys.argv[1])
    log, chance = Log(said["log"]), random.Random(said["seed"])

    def on_changes(changes: Sequence[lh.Change]) -> None:
        time.sleep(chance.uniform(0, 0.01))
        fails = chance.random() < said["fails"]
        for change in changes[: chance.randrange(len(changes)) if fails else None]:
            document = change.document or change.previous or {}
            place = f"{document['home']}/{document['id']}"
            log.write(place, change.operation, change.lsn, document["n"], time.monotonic())
        if fails:
            raise RuntimeError("the other side is down")

    processor = lh.ChangeFeedProcessor(
        lh.open_feed(said["feed"], said["mode"]),
        name=said["unit"],
        on_changes=on_changes,
        store=lh.open_store(said["store"]),
        instance=said["instance"],
        mode=said["mode"],
        start="beginning",
        max_items=20,
        poll_interval_s=0.1,
        retry=lh.Retry(backoff_s=0.02, backoff_max_s=0.2),
        lease_ttl_s=2.0,
        balance_interval_s=0.5,
    )
    try:
        processor.run(until_drained=said["until_drained"])
    except lh.InstanceReplaced:
        sys.exit(REPLACED)


if __name__ == "__main__":
    main()
