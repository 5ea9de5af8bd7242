"""What the ancestors of ranges tell about splits and merges that nobody saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from leasehold.feeds.cosmos.client import PhysicalRange


def merged_since(partition: str, ranges: Collection[PhysicalRange]) -> bool:
    """Whether the ranges that came of a partition may hold keys of others.

    A split leaves two with fewer descendants each; a range that is merged has those of the merged
    one. So where two of one line have the same descendants, one came of the other by a merge.
    """
    descendants: defaultdict[str, set[str]] = defaultdict(set)
    for each in ranges:
        for name in (*each.parents, each.id):
            descendants[name].add(each.id)
    own = descendants[partition]
    for each in ranges:
        if each.id not in own:
            continue
        line = (*each.parents, each.id)
        times = Counter(frozenset(descendants[name]) for name in line)
        later = line[line.index(partition) + 1 :] if partition in line else ()
        if any(number > 1 and found < own for found, number in times.items()) or any(
            descendants[name] == own for name in later
        ):
            return True
    return False
