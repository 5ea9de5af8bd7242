from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.event import Event, EventData
from leasehold.core.model import Checkpoint, Group
from leasehold.errors import BadInput, FeedUnavailable, StoreUnavailable
from leasehold.feeds.hub import Hub
from leasehold.operations.redrive import (
    REDRIVEN_FROM,
    REDRIVES,
    Redriven,
    redrive,
    to_hub,
)
from leasehold.ports import DeadLetter, LetterFilter
from leasehold.processor.letters import letter_for
from leasehold.processor.processor import Processor
from leasehold.settings import Retry
from leasehold.stores import open_dead_letters, open_store
from leasehold.stores.dead_letters.memory import MemoryDeadLetters
from leasehold.testing.check_dead_letters import any_letter

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")
ALL = LetterFilter()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    path = tmp_path / "hub.db"
    with Hub.create(path, name="sensors", namespace="homes.local", partitions=4) as made:
        yield made


def _filled(letters: Sequence[DeadLetter]) -> MemoryDeadLetters:
    store = MemoryDeadLetters()
    asyncio.run(store.put(letters))
    return store


def _open_sequences(store: MemoryDeadLetters) -> list[int]:
    found = asyncio.run(store.list(LetterFilter(redriven=False)))
    return [letter.sequence for letter in found]


def test_a_letter_carries_all_of_the_event_and_of_its_origin() -> None:
    event = Event(
        body=b"\xff",
        sequence=41,
        offset="4100",
        enqueued_at=datetime(2024, 1, 1, tzinfo=UTC),
        partition="3",
        partition_key="H1",
        properties={"kind": "door"},
    )
    letter = letter_for(GROUP, event, ValueError("no"), 5)
    assert letter.event == event
    assert (letter.group, letter.error, letter.attempts) == (GROUP, "ValueError: no", 5)
    assert letter.origin == "homes.local/sensors/alerts/3/41"


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5))
def test_those_that_succeed_are_marked_and_those_that_fail_stay(
    fates: list[bool], page: int
) -> None:
    store = _filled([any_letter(GROUP, n) for n in range(len(fates))])
    given_to, told = [], []

    def handler(letter: DeadLetter) -> None:
        given_to.append(letter.sequence)
        if not fates[letter.sequence]:
            raise ValueError(f"still bad: {letter.sequence}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leasehold.operations.redrive.PAGE", page)
        done = asyncio.run(
            redrive(store, handler, on_each=lambda letter, error: told.append(error is None))
        )
    assert given_to == list(range(len(fates)))
    assert told == fates
    assert done.count == sum(fates)
    assert _open_sequences(store) == [n for n, good in enumerate(fates) if not good]
    assert [str(error) for _, error in done.failed] == [
        f"still bad: {letter.sequence}" for letter, _ in done.failed
    ]


def test_a_letter_that_failed_keeps_its_first_error() -> None:
    store = _filled([any_letter(GROUP, 0)])
    before = asyncio.run(store.list(ALL))

    def handler(letter: DeadLetter) -> None:
        raise RuntimeError("something else")

    asyncio.run(redrive(store, handler))
    assert asyncio.run(store.list(ALL)) == before


def test_a_letter_is_marked_only_after_the_handler_returned() -> None:
    store = _filled([any_letter(GROUP, n) for n in range(3)])
    open_at_call = []

    async def handler(letter: DeadLetter) -> None:
        open_at_call.append(
            [each.sequence for each in await store.list(LetterFilter(redriven=False))]
        )

    asyncio.run(redrive(store, handler))
    assert open_at_call == [[0, 1, 2], [1, 2], [2]]


def test_only_what_is_selected_and_was_not_redriven_before_is_redriven() -> None:
    other = replace(GROUP, name="activity")
    store = _filled([*(any_letter(GROUP, n) for n in range(3)), any_letter(other, 9)])
    seen: list[int] = []

    async def scene() -> None:
        letters = await store.list(ALL)
        await store.mark_redriven([letters[1].id])
        await redrive(
            store, lambda letter: seen.append(letter.sequence), LetterFilter(group="alerts")
        )
        assert seen == [0, 2]
        await redrive(
            store, lambda letter: seen.append(letter.sequence), LetterFilter(group="alerts")
        )
        assert seen == [0, 2]
        which = LetterFilter(ids=[letters[1].id])
        await redrive(store, lambda letter: seen.append(letter.sequence), which, again=True)
        assert seen == [0, 2, 1]

    asyncio.run(scene())
    assert _open_sequences(store) == [9]


def test_letters_that_arrive_meanwhile_are_left_for_the_next_time() -> None:
    store = _filled([any_letter(GROUP, n) for n in range(3)])
    calls = 0

    async def handler(letter: DeadLetter) -> None:
        nonlocal calls
        calls += 1
        assert calls < 10, "it feeds itself"
        await store.put([replace(letter, sequence=letter.sequence + 100)])

    assert asyncio.run(redrive(store, handler)).count == 3
    assert _open_sequences(store) == [100, 101, 102]


def test_plain_handlers_run_in_a_thread_and_async_ones_on_the_loop() -> None:
    store = _filled([any_letter(GROUP, 0)])
    threads = []

    def plain(letter: DeadLetter) -> None:
        threads.append(threading.current_thread())

    async def on_loop(letter: DeadLetter) -> None:
        threads.append(threading.current_thread())

    async def on_event(event: Event) -> None:
        threads.append(threading.current_thread())

    class Handler:
        async def __call__(self, letter: DeadLetter) -> None:
            threads.append(threading.current_thread())

    for handler in (plain, on_loop, lambda letter: on_event(letter.event), Handler()):
        assert asyncio.run(redrive(store, handler, again=True)) == Redriven(count=1)
    main = threading.main_thread()
    assert [thread is main for thread in threads] == [False, True, True, True]


@pytest.mark.parametrize("trouble", [FeedUnavailable("busy"), StoreUnavailable("gone")])
def test_a_hub_in_trouble_ends_the_redrive_and_the_rest_stays(trouble: Exception) -> None:
    store = _filled([any_letter(GROUP, n) for n in range(3)])

    def handler(letter: DeadLetter) -> None:
        if letter.sequence == 1:
            raise trouble

    with pytest.raises(type(trouble)):
        asyncio.run(redrive(store, handler))
    assert _open_sequences(store) == [1, 2]


def test_a_letter_goes_back_to_the_partition_of_its_key(hub: Hub) -> None:
    (sent,) = hub.send(EventData("x", {"kind": "door"}), partition_key="H1")
    (event,) = hub.read_batch(sent.partition, Checkpoint(next_sequence=0), 1).events
    store = _filled([letter_for(GROUP, event, "bad", 5)])
    asyncio.run(redrive(store, to_hub(hub)))
    _, back = hub.read_batch(sent.partition, Checkpoint(next_sequence=0), 9).events
    assert (back.body, back.partition_key) == (b"x", "H1")
    origin = f"homes.local/sensors/alerts/{sent.partition}/0"
    assert back.properties == {"kind": "door", REDRIVEN_FROM: origin, REDRIVES: 1}


def test_a_letter_without_a_key_goes_back_to_its_own_partition(hub: Hub) -> None:
    store = _filled([any_letter(GROUP, 0, partition="3", partition_key=None)])
    asyncio.run(redrive(store, to_hub(hub)))
    (back,) = hub.read_batch("3", Checkpoint(next_sequence=0), 9).events
    assert back.partition_key is None


def test_a_letter_that_runs_in_circles_can_be_seen(hub: Hub) -> None:
    store = _filled([any_letter(GROUP, 7, partition="2")])
    for turn in range(3):
        assert asyncio.run(redrive(store, to_hub(hub))).count == 1
        event = hub.read_batch("2", Checkpoint(next_sequence=turn), 9).events[0]
        assert event.properties[REDRIVES] == turn + 1
        asyncio.run(store.put([letter_for(GROUP, event, "bad again", 5)]))
    assert event.properties[REDRIVEN_FROM] == "homes.local/sensors/alerts/2/1"
    assert asyncio.run(store.count(ALL)) == {GROUP: 4}


def test_a_letter_of_another_hub_is_refused_unless_told_otherwise(hub: Hub) -> None:
    store = _filled([any_letter(replace(GROUP, feed="cameras"), 0, partition="1")])
    done = asyncio.run(redrive(store, to_hub(hub)))
    ((_, error),) = done.failed
    assert isinstance(error, BadInput)
    assert "homes.local/cameras, not from homes.local/sensors" in str(error)
    assert asyncio.run(redrive(store, to_hub(hub, any_origin=True))).count == 1
    assert len(hub.read_batch("1", Checkpoint(next_sequence=0), 9).events) == 1


def test_a_letter_that_the_hub_cannot_take_stays_and_the_others_go(hub: Hub) -> None:
    big = any_letter(GROUP, 0, partition="0", body=b"x" * hub.batch_bytes_max)
    lost = any_letter(GROUP, 1, partition="99")
    good = any_letter(GROUP, 2, partition="0")
    store = _filled([big, lost, good])
    done = asyncio.run(redrive(store, to_hub(hub)))
    assert done.count == 1
    assert [type(error) for _, error in done.failed] == [BadInput, BadInput]
    assert _open_sequences(store) == [0, 1]


DIE_BETWEEN_SEND_AND_MARK = """
import asyncio, os, signal, sys
from leasehold.feeds.hub import Hub
from leasehold.operations.redrive import redrive, to_hub
from leasehold.stores import open_dead_letters, open_store

send = to_hub(Hub.open(sys.argv[1]))

def send_and_die(letter):
    send(letter)
    if letter.sequence == 1:
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(redrive(open_dead_letters(sys.argv[2]), send_and_die))
"""


def test_after_a_kill_a_letter_is_sent_twice_at_worst_and_never_lost(
    hub: Hub, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/dead.db"

    async def put() -> None:
        store = open_dead_letters(url)
        letters = [any_letter(GROUP, n, partition="0", body=b"%d" % n) for n in range(4)]
        await store.put(letters)
        await store.close()

    async def finish() -> int:
        store = open_dead_letters(url)
        done = await redrive(store, to_hub(hub))
        assert await store.count(LetterFilter(redriven=False)) == {}
        await store.close()
        return done.count

    asyncio.run(put())
    died = subprocess.run(
        [sys.executable, "-c", DIE_BETWEEN_SEND_AND_MARK, str(hub.path), url],
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert asyncio.run(finish()) == 3
    events = hub.read_batch("0", Checkpoint(next_sequence=0), 99).events
    assert [event.body for event in events] == [b"0", b"1", b"1", b"2", b"3"]


def test_what_a_processor_set_aside_is_handled_after_the_handler_was_mended(
    hub: Hub, tmp_path: Path
) -> None:
    letters = open_dead_letters(f"sqlite:///{tmp_path}/dead.db")
    leases = open_store(f"sqlite:///{tmp_path}/leases.db")
    hub.send([EventData(b"%d" % n) for n in range(20)], partition_id="1")
    handled: list[int] = []
    broken = {7, 8, 15}

    def on_batch(events: Sequence[Event]) -> None:
        numbers = [int(event.body) for event in events]
        if broken & set(numbers):
            raise ValueError("broken")
        handled.extend(numbers)

    def drain() -> None:
        Processor(
            hub,
            group="alerts",
            store=leases,
            on_batch=on_batch,
            retry=Retry(attempts=2, backoff_s=0.0, then="dead-letter"),
            dead_letters=letters,
            instance="a",
        ).run(until_drained=True)

    drain()
    assert handled == [n for n in range(20) if n not in broken]
    found = asyncio.run(letters.list(ALL))
    assert [letter.sequence for letter in found] == sorted(broken)
    assert {(letter.group, letter.partition, letter.reason) for letter in found} == {
        (GROUP, "1", "ValueError: broken")
    }
    broken.discard(7)
    asyncio.run(redrive(letters, to_hub(hub)))
    handled.clear()
    drain()
    assert handled == [7]
    waiting = asyncio.run(letters.list(LetterFilter(redriven=False)))
    assert [(int(letter.body), letter.sequence) for letter in waiting] == [(8, 21), (15, 22)]
    assert [letter.properties[REDRIVES] for letter in waiting] == [1, 1]
    assert asyncio.run(letters.purge(LetterFilter(redriven=True))) == 3
    broken.clear()
    redriven = asyncio.run(redrive(letters, lambda letter: on_batch([letter.event])))
    assert (redriven, handled) == (Redriven(count=2), [7, 8, 15])
    asyncio.run(letters.close())
    asyncio.run(leases.close())
