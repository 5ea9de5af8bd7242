"""One host of our change feed processor, as ``CosmosHost.java`` is one of Azure's: prints the id of
every change, until its input ends. ``python -m benchmarks.cosmos_app '{…}'``"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import leasehold as lh


def main() -> None:
    said: dict[str, Any] = json.loads(sys.argv[1])

    def on_changes(changes: Any) -> None:
        sys.stdout.write("".join(f"{change.document['id']}\n" for change in changes))
        sys.stdout.flush()

    processor = lh.ChangeFeedProcessor(
        lh.open_feed(said["feed"]),
        name="bench",
        instance=said["instance"],
        store=lh.open_store(said["leases"]),
        on_changes=on_changes,
        start="beginning",
        max_items=said["max_items"],
        poll_interval_s=0.2,
        balance_interval_s=said["interval_s"],
        lease_ttl_s=said["ttl_s"],
    )

    def until_input_ends() -> None:
        sys.stdin.read()
        processor.stop()

    threading.Thread(target=until_input_ends, daemon=True).start()
    processor.run()


if __name__ == "__main__":
    main()
