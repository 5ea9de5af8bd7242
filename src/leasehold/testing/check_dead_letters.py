"""What every dead-letter store must do. A store is done when all of these pass.

``CHECKS`` lists the rules one by one, so that a test runner can report each by name;
``check_dead_letters`` runs them all. A check gets a function that reopens the store (all opened
stores share the same data, as two processes would) and a group that nobody else uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

from leasehold.core.model import Group
from leasehold.ports import DeadLetter, DeadLetters, LetterFilter

OpenDeadLetters = Callable[[], Awaitable[DeadLetters]]
Check = Callable[[OpenDeadLetters, Group], Awaitable[None]]

CHECKS: list[Check] = []
AT = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)


def check(rule: Check) -> Check:
    CHECKS.append(rule)
    return rule


async def check_dead_letters(open_store: OpenDeadLetters) -> None:
    """Every rule for a dead-letter store. An assertion fails where one is broken."""
    for rule in CHECKS:
        await rule(open_store, any_group())


def any_group() -> Group:
    return Group(namespace="homes.local", feed="sensors", name=f"g-{uuid4().hex[:12]}")


def any_letter(group: Group, sequence: int = 0, **changes: Any) -> DeadLetter:
    letter = DeadLetter(
        group=group,
        partition="7",
        sequence=sequence,
        token=str(sequence * 100),
        body=b'{"motion": true}',
        enqueued_at=AT,
        error="ValueError: no such sensor",
        attempts=5,
    )
    return replace(letter, **changes)


@check
async def a_letter_comes_back_as_it_was_put(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    letters = [
        any_letter(group, 0),
        any_letter(
            group,
            2**62,
            partition="range-0f",
            token="lsn:9/döc",
            body=bytes(range(256)),
            properties={"a": "ä", "n": -1, "x": 1.5, "yes": True, "none": None, "nul": "a\0b"},
            partition_key="H000123\0ß",
            enqueued_at=AT.astimezone(),
            error="KeyError: 'ü'\n" * 100,
            attempts=1,
        ),
        any_letter(group, 2, body=b"", token="", error="", attempts=0, partition_key=""),
    ]
    before = datetime.now(UTC)
    await store.put(letters)
    other = await open_store()
    found = await _all(other, group)
    assert [_as_put(letter) for letter in found] == letters
    assert [letter.id for letter in found] == [letter.id for letter in letters]
    for letter in found:
        assert letter.dead_at is not None
        assert abs(letter.dead_at - before) < timedelta(hours=1)
        assert (letter.redriven_at, letter.redrives) == (None, 0)
        assert await other.get(letter.id) == letter
    await store.close()
    await other.close()


@check
async def a_letter_put_again_is_one_letter(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    await store.put([any_letter(group, 1), any_letter(group, 2)])
    (first, _) = await _all(store, group)
    for _ in range(2):  # the answer may have been lost: again is harmless
        await store.put([any_letter(group, 1, error="TimeoutError", attempts=9)])
    again, other = await _all(store, group)
    assert (again.error, again.attempts, again.number) == ("TimeoutError", 9, first.number)
    assert _as_put(other) == any_letter(group, 2)
    assert (await store.count(_of(group))) == {group: 2}
    await store.close()


@check
async def a_letter_twice_in_one_call_is_one_letter(
    open_store: OpenDeadLetters, group: Group
) -> None:
    store = await open_store()
    await store.put([any_letter(group, 1, attempts=1), any_letter(group, 1, attempts=2)])
    assert [letter.attempts for letter in await _all(store, group)] == [2]
    await store.close()


@check
async def putting_nothing_is_harmless(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    await store.put([])
    assert await _all(store, group) == ()
    assert await store.count(_of(group)) == {}
    await store.close()


@check
async def letters_differ_by_group_partition_sequence_and_token(
    open_store: OpenDeadLetters, group: Group
) -> None:
    store = await open_store()
    letter = any_letter(group, 1)
    letters = [
        letter,
        replace(letter, sequence=2),
        replace(letter, partition="8"),
        replace(letter, token="of a recreated hub"),
        replace(letter, group=replace(group, feed="cameras")),
        replace(letter, group=replace(group, namespace="offices.local")),
    ]
    await store.put(letters)
    found = await store.list(LetterFilter(group=group.name))
    assert [_as_put(each) for each in found] == letters
    await store.close()


@check
async def what_fails_again_after_a_redrive_is_open_again(
    open_store: OpenDeadLetters, group: Group
) -> None:
    store = await open_store()
    await store.put([any_letter(group, 1)])
    (letter,) = await _all(store, group)
    assert await store.mark_redriven([letter.id]) == 1
    await store.put([any_letter(group, 1)])
    (letter,) = await _all(store, group)
    assert (letter.redriven_at, letter.redrives) == (None, 1)
    assert await store.purge(replace(_of(group), redriven=True)) == 0
    await store.close()


@check
async def marking_counts_each_redrive(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    await store.put([any_letter(group, n) for n in range(3)])
    ids = [letter.id for letter in await _all(store, group)]
    assert await store.mark_redriven(ids[:2]) == 2
    assert await store.mark_redriven([ids[0], "unknown", ids[0]]) == 1
    assert await store.mark_redriven([]) == 0
    found = await _all(store, group)
    assert [letter.redrives for letter in found] == [2, 1, 0]
    assert [letter.redriven_at is not None for letter in found] == [True, True, False]
    await store.close()


@check
async def an_unknown_letter_is_none(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    assert await store.get(any_letter(group).id) is None
    assert await store.get("'; DROP TABLE leasehold_dead_letters --") is None
    await store.close()


@check
async def pages_go_through_all_letters_in_order_of_arrival(
    open_store: OpenDeadLetters, group: Group
) -> None:
    store = await open_store()
    for sequence in (5, 3, 9, 1):
        await store.put([any_letter(group, sequence), any_letter(group, sequence + 100)])
    await store.put([any_letter(replace(group, name=group.name + "-b"), 1)])
    arrived = [5, 105, 3, 103, 9, 109, 1, 101]
    for newest_first, expected in ((False, arrived), (True, arrived[::-1])):
        for limit in (1, 3, 8, 100):
            pages: list[DeadLetter] = []
            while page := await store.list(
                _of(group),
                limit=limit,
                after=pages[-1].number if pages else None,
                newest_first=newest_first,
            ):
                assert len(page) <= limit
                pages += page
                assert len(pages) <= len(expected), "a letter came twice"
            assert [letter.sequence for letter in pages] == expected
    assert await store.list(_of(group), limit=0) == ()
    await store.close()


@check
async def a_number_is_never_used_again(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    numbers = []
    for sequence in range(4):
        await store.put([any_letter(group, sequence)])
        (letter,) = await _all(store, group)
        numbers.append(letter.number)
        await store.purge(_of(group))
    assert all(before < after for before, after in pairwise(numbers))
    await store.close()


@check
async def which_selects_what_fits_in_all_that_is_given(
    open_store: OpenDeadLetters, group: Group
) -> None:
    store = await open_store()
    other = replace(group, feed="cameras")
    await store.put([any_letter(group, n, partition=str(n % 2)) for n in range(4)])
    await store.put([any_letter(other, n) for n in range(2)])
    letters = await store.list(LetterFilter(group=group.name))
    await store.mark_redriven([letters[0].id, letters[4].id])

    async def found(**given: Any) -> list[int]:
        which = LetterFilter(group=group.name, **given)
        listed = [letter.number for letter in await store.list(which)]
        assert sum((await store.count(which)).values()) == len(listed)
        return [[letter.number for letter in letters].index(number) for number in listed]

    assert await found() == [0, 1, 2, 3, 4, 5]
    assert await found(namespace=group.namespace) == [0, 1, 2, 3, 4, 5]
    assert await found(namespace="elsewhere") == []
    assert await found(feed="cameras") == [4, 5]
    assert await found(partition="1") == [1, 3]
    assert await found(ids=[letters[2].id, letters[5].id, "unknown"]) == [2, 5]
    assert await found(ids=[]) == []
    assert await found(redriven=True) == [0, 4]
    assert await found(redriven=False, feed=group.feed) == [1, 2, 3]
    assert await found(up_to=letters[3].number) == [0, 1, 2, 3]
    assert await found(older_than_s=3600.0) == []
    await asyncio.sleep(0.05)
    assert await found(older_than_s=0.01) == [0, 1, 2, 3, 4, 5]
    await store.close()


@check
async def counts_are_per_group(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    other = replace(group, namespace="offices.local")
    await store.put([any_letter(group, n) for n in range(3)])
    await store.put([any_letter(other, 0)])
    assert await store.count(LetterFilter(group=group.name)) == {group: 3, other: 1}
    assert (await store.count(LetterFilter()))[group] == 3
    await store.close()


@check
async def a_purge_removes_exactly_what_was_selected(
    open_store: OpenDeadLetters, group: Group
) -> None:
    store = await open_store()
    other = replace(group, name=group.name + "-b")
    await store.put([any_letter(group, n) for n in range(6)] + [any_letter(other, 0)])
    letters = await _all(store, group)
    await store.mark_redriven([letters[0].id, letters[1].id])

    async def left() -> list[int]:
        return [letter.sequence for letter in await _all(store, group)]

    assert await store.purge(replace(_of(group), older_than_s=3600.0)) == 0
    assert await store.purge(LetterFilter(ids=[letters[0].id, "unknown"])) == 1
    assert await left() == [1, 2, 3, 4, 5]
    assert await store.purge(replace(_of(group), redriven=True)) == 1
    assert await left() == [2, 3, 4, 5]
    assert await store.purge(replace(_of(group), up_to=letters[3].number)) == 2
    assert await left() == [4, 5]
    for expected in (2, 0):  # the answer may have been lost: again is harmless
        assert await store.purge(_of(group)) == expected
    assert await store.get(letters[5].id) is None
    assert await store.count(LetterFilter(group=other.name)) == {other: 1}
    await store.close()


@check
async def many_can_be_put_and_purged(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    many = [any_letter(group, n) for n in range(2_500)]
    await store.put(many)
    assert await store.count(_of(group)) == {group: 2_500}
    assert await store.mark_redriven([letter.id for letter in many[::2]]) == 1_250
    assert await store.purge(replace(_of(group), redriven=True)) == 1_250
    assert await store.purge(_of(group)) == 1_250
    await store.close()


@check
async def several_can_put_at_once(open_store: OpenDeadLetters, group: Group) -> None:
    stores = [await open_store() for _ in range(5)]
    await asyncio.gather(
        *(
            store.put([any_letter(group, n, partition=str(p)), any_letter(group, n)])
            for p, store in enumerate(stores)
            for n in range(10)
        )
    )
    found = await _all(stores[0], group)
    assert len({letter.id for letter in found}) == len(found) == 60
    assert len({letter.number for letter in found}) == 60
    for store in stores:
        await store.close()


@check
async def a_closed_store_opens_again_when_used_and_in_another_event_loop_too(
    open_store: OpenDeadLetters, group: Group
) -> None:
    store = await open_store()
    await store.put([any_letter(group, 0)])
    await store.close()
    await store.close()
    await store.put([any_letter(group, 1)])

    async def elsewhere() -> None:
        await store.put([any_letter(group, 2)])
        await store.close()
        assert len(await _all(store, group)) == 3
        await store.close()

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert len(await _all(store, group)) == 3
    await store.close()


@check
async def requests_are_counted_by_verb(open_store: OpenDeadLetters, group: Group) -> None:
    store = await open_store()
    before = store.requests.copy()
    await store.put([any_letter(group, n) for n in range(10)])
    (letter,) = await store.list(_of(group), limit=1)
    await store.mark_redriven([letter.id])
    grown = store.requests - before
    for verb in ("put", "list", "mark_redriven"):
        assert 1 <= grown[verb] <= 3, "a few for a verb, and not one for each letter"
    await store.close()


def _of(group: Group) -> LetterFilter:
    return LetterFilter(namespace=group.namespace, feed=group.feed, group=group.name)


async def _all(store: DeadLetters, group: Group) -> Sequence[DeadLetter]:
    return await store.list(_of(group))


def _as_put(letter: DeadLetter) -> DeadLetter:
    return replace(letter, number=0, dead_at=None, redriven_at=None, redrives=0)
