"""Writes documents and splits ranges, steadily and by chance: ``python -m chaos.writer '{…}'``."""

from __future__ import annotations

import json
import random
import sys
import time

from chaos.instance import end_with_parent
from support.feed_files import can_be_split

import leasehold as lh


def main() -> None:
    end_with_parent()
    said = json.loads(sys.argv[1])
    chance = random.Random(said["seed"])
    container = lh.Container.open(said["container"])
    begin = time.monotonic()
    end = begin + said["seconds"]
    splits = sorted(chance.uniform(begin, end) for _ in range(said["splits"]))
    n = 0
    while splits or time.monotonic() < end:
        n += 1
        home, id = f"H{chance.randrange(40)}", f"d{chance.randrange(5)}"
        if chance.random() < 0.1:
            container.delete(id, home)
        else:
            container.upsert({"id": id, "home": home, "n": n})
        if splits and time.monotonic() >= splits[0]:
            del splits[0]
            container.split(chance.choice(can_be_split(container)))
        time.sleep(chance.uniform(0, 0.01))
    print(n, "writes,", said["splits"], "splits")


if __name__ == "__main__":
    main()
