"""The user's functions behind one face."""

import asyncio
import functools
import threading
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.event import Event
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Group, Lease
from leasehold.errors import BadInput, LeaseLost
from leasehold.processor.handlers import Context, Handlers, Once, Quit
from leasehold.processor.threads import HandlerThreads

LEASE = Lease(
    group=Group(namespace="n", feed="f", name="g"),
    partition="0",
    checkpoint=Checkpoint(next_sequence=0),
    epoch=3,
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def events(count, partition="0"):
    return [Event(b"x", n, str(10 * n), NOON, partition) for n in range(count)]


def handlers(**functions):
    names = ("on_event", "on_batch", "on_error", "on_partition_open", "on_partition_close")
    return Handlers(**{name: functions.get(name) for name in names}, threads=HandlerThreads("t"))


def handle(given, *, stop=lambda done: False, save=None, **functions):
    """The outcome, and the context that the handler had."""

    async def saved(position):
        return True

    async def main():
        context = Context(LEASE, "a", save or saved)
        return await handlers(**functions).handle(given, context, stop), context

    return asyncio.run(main())


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(-14, 14), st.integers(-14, 14))))
def test_events_made_once_are_cut_like_a_list(count, cuts):
    made, wanted = Once(range(100, 100 + count)), list(range(100, 100 + count))
    for first, end in cuts:
        made, wanted = made[first:end], wanted[first:end]
        assert (len(made), list(made)) == (len(wanted), wanted)
        assert [made[n] for n in range(len(wanted))] == wanted
        if wanted:
            assert made[-1] == wanted[-1]


def test_events_are_made_once_however_often_a_run_is_cut_short():
    class Counted(list):
        times = 0

        def __iter__(self):
            Counted.times += 1
            return super().__iter__()

    left = Once(Counted(range(10)))
    assert left[3] == 3
    assert Counted.times == 0
    for first in range(10):
        assert next(iter(left[first:])) == first
    assert Counted.times == 1


class Callable:
    def __init__(self):
        self.seen = []

    def __call__(self, event):
        self.seen.append(event.sequence)


class AsyncCallable(Callable):
    async def __call__(self, event):
        self.seen.append(event.sequence)


def shapes():
    """Every way in which a function may take an event."""
    seen = []

    def note(event, context=None):
        seen.append(event.sequence)

    def strict(event, context):
        assert context.partition == "0"
        note(event)

    async def note_async(event):
        note(event)

    async def strict_async(event, context):
        strict(event, context)

    def own_default(event, factor=2):
        assert factor == 2
        note(event)

    def anything(*arguments):
        (event,) = arguments
        note(event)

    def keyword(event, *, out=seen):
        out.append(event.sequence)

    return seen, {
        "plain": note,
        "plain with context": strict,
        "async": note_async,
        "async with context": strict_async,
        "a default of its own": own_default,
        "any arguments": anything,
        "keyword with a default": keyword,
        "partial": functools.partial(note),
        "async partial": functools.partial(note_async),
        "lambda": lambda event: note(event),  # noqa: PLW0108
        "lambda around async": lambda event: note_async(event),  # noqa: PLW0108
        "lambda with a default": lambda event, out=seen: out.append(event.sequence),
    }


@pytest.mark.parametrize("shape", shapes()[1])
def test_a_function_of_any_shape_gets_each_event(shape):
    seen, functions = shapes()
    outcome, _ = handle(events(3), on_event=functions[shape])
    assert (outcome.done, outcome.error, seen) == (3, None, [0, 1, 2])


@pytest.mark.parametrize("kind", [Callable, AsyncCallable])
def test_an_object_that_can_be_called_will_do(kind):
    thing = kind()
    outcome, _ = handle(events(3), on_event=thing)
    assert (outcome.done, thing.seen) == (3, [0, 1, 2])


def test_a_builtin_will_do():
    seen = []
    assert handle(events(2), on_event=seen.append)[0].done == 2
    assert [event.sequence for event in seen] == [0, 1]
    assert handle(events(2), on_batch=seen.extend)[0].done == 2
    assert len(seen) == 4


def test_plain_functions_run_in_threads_and_async_ones_on_the_loop():
    where = []

    async def on_loop(event):
        where.append(threading.current_thread() is threading.main_thread())

    handle(events(1), on_event=on_loop)
    handle(events(1), on_event=lambda e: where.append(threading.current_thread().name))
    assert where[0] is True
    assert where[1].startswith("t-")


@pytest.mark.parametrize("is_async", [False, True])
@given(count=st.integers(1, 20), bad=st.integers(0, 25), enough=st.integers(1, 25))
def test_one_by_one_what_is_done_ends_before_the_failure_or_where_it_was_enough(
    is_async, count, bad, enough
):
    seen = []

    def plain(event):
        seen.append(event.sequence)
        if event.sequence == bad:
            raise ValueError("bad")

    async def on_loop(event):
        plain(event)

    outcome, context = handle(
        events(count), on_event=on_loop if is_async else plain, stop=lambda done: done >= enough
    )
    assert outcome.done == min(count, bad, enough)
    assert (outcome.error is not None) == (bad < min(count, enough))
    assert seen == list(range(outcome.done + (outcome.error is not None)))
    assert context.latest.sequence == seen[-1]


@pytest.mark.parametrize(
    "error",
    [ValueError("v"), StopIteration("s"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("how", ["on_event", "on_batch"])
def test_whatever_a_plain_function_raises_is_its_outcome(how, error):
    def fail(given):
        raise error

    outcome, _ = handle(events(3), **{how: fail})
    assert (outcome.done, outcome.error) == (0, error)


@pytest.mark.parametrize("how", ["on_event", "on_batch"])
def test_cancelling_something_within_an_async_function_is_a_failure_like_any_other(how):
    async def fail(given):
        inner = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    outcome, _ = handle(events(3), **{how: fail})
    assert outcome.done == 0
    assert isinstance(outcome.error, asyncio.CancelledError)


@pytest.mark.parametrize("how", ["on_event", "on_batch"])
def test_cancelling_the_call_itself_is_no_outcome(how):
    async def main():
        began = asyncio.Event()

        async def slow(given):
            began.set()
            await asyncio.sleep(60)

        context = Context(LEASE, "a", None)
        call = asyncio.ensure_future(
            handlers(**{how: slow}).handle(events(1), context, lambda done: False)
        )
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_batch_that_is_done_says_so_at_once_unless_it_was_cancelled_before(swallowed):
    """Who stops waiting for a handler that blocks its loop never gets the outcome."""

    async def main():
        told = []

        async def on_batch(batch):
            if swallowed:
                asyncio.current_task().cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

        def stop(done):
            told.append(done)
            return False

        call = handlers(on_batch=on_batch).handle(events(3), Context(LEASE, "a", None), stop)
        await asyncio.ensure_future(call)
        assert told == ([] if swallowed else [3])

    asyncio.run(main())


def test_a_plain_call_that_nobody_waits_for_any_more_is_remembered_until_it_ends():
    async def main():
        go, began = threading.Event(), threading.Event()

        def slow(event):
            began.set()
            go.wait(60)

        mine = handlers(on_event=slow)
        context = Context(LEASE, "a", None)
        call = asyncio.ensure_future(mine.handle(events(1), context, lambda done: True))
        while not began.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        (left,) = mine.left_behind
        go.set()
        left.result(timeout=30)
        while mine.left_behind:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_batch_is_one_call_and_its_latest_event_is_the_last():
    calls = []
    outcome, context = handle(events(4), on_batch=lambda batch, context: calls.append(list(batch)))
    assert (outcome.done, calls, context.latest.sequence) == (4, [events(4)], 3)


async def batch_async(batch):
    pass


@pytest.mark.parametrize("on_batch", [len, batch_async])
@pytest.mark.parametrize(
    ("others", "made"),
    [
        ({}, []),
        ({"on_error": print, "on_partition_close": lambda reason: None}, []),
        ({"on_error": lambda error, context: None}, [-1]),
        ({"on_partition_open": lambda context: None}, [-1]),
        ({"on_partition_close": lambda reason, context: None}, [-1]),
    ],
)
def test_the_latest_event_is_made_only_where_a_function_can_ask_for_it(on_batch, others, made):
    """A feed that holds columns makes an event for it, once a batch."""

    asked = []

    class Columns(list):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    _, context = handle(Columns(events(4)), on_batch=on_batch, **others)
    assert asked == made
    assert context._events == ()


def test_the_other_callbacks_get_what_they_ask_for():
    told = []

    async def close(reason, context):
        told.append((reason, context.partition))

    async def main():
        context = Context(LEASE, "a", None)
        mine = handlers(
            on_event=print,
            on_error=told.append,
            on_partition_open=lambda: told.append("open"),
            on_partition_close=close,
        )
        await mine.open(context)
        await mine.error(OSError("o"), None)
        await mine.close(Reason.BALANCED, context)
        await handlers(on_event=print).open(context)  # nobody wants to know

    asyncio.run(main())
    assert told[0] == "open"
    assert str(told[1]) == "o"
    assert told[2] == ("balanced", "0")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_that_wants_the_end_is_heard(is_async, error):
    def plain():
        raise error

    async def on_loop():
        plain()

    async def main():
        mine = handlers(on_event=print, on_partition_open=on_loop if is_async else plain)
        with pytest.raises(Quit) as wish:
            await mine.open(Context(LEASE, "a", None))
        assert wish.value.error is error

    asyncio.run(main())


@pytest.mark.parametrize(
    ("functions", "complaint"),
    [
        ({}, "either on_event= .* or on_batch="),
        ({"on_event": print, "on_batch": print}, "either on_event= .* or on_batch="),
        ({"on_event": "print"}, "on_event must be a function, not 'print'"),
        ({"on_event": lambda: None}, "on_event must take 1 argument, or a context"),
        ({"on_batch": lambda a, b, c: None}, "on_batch must take 1 argument.* takes 3"),
        ({"on_event": print, "on_error": lambda: None}, "on_error must take 1 argument"),
        ({"on_event": print, "on_error": 5}, "on_error must be a function, not 5"),
        ({"on_event": print, "on_error": False}, "on_error must be a function, not False"),
        (
            {"on_event": print, "on_partition_open": lambda a, b: None},
            "on_partition_open must take no arguments, or a context",
        ),
        (
            {"on_event": print, "on_partition_close": lambda a, b, c: None},
            "on_partition_close must take 1 argument, or a context",
        ),
        ({"on_event": lambda event, *, out: None}, "on_event .*out"),
    ],
)
def test_functions_that_cannot_be_called_are_refused_by_name(functions, complaint):
    with pytest.raises(BadInput, match=complaint):
        handlers(**functions)


def checkpoint_by(call, given, kept=True):
    saved = []

    async def save(position):
        saved.append(position)
        return kept

    outcome, _ = handle(given, save=save, **call)
    return outcome.error, saved


def test_a_checkpoint_is_behind_the_event_it_names():
    def on_batch(batch, context):
        context.checkpoint(batch[1])

    async def on_event(event, context):
        if event.sequence == 1:
            await context.checkpoint_async()

    behind = [Checkpoint(next_sequence=2, token="10")]
    assert checkpoint_by({"on_batch": on_batch}, events(4)) == (None, behind)
    assert checkpoint_by({"on_event": on_event}, events(4)) == (None, behind)


def test_before_the_first_event_there_is_nothing_to_checkpoint():
    async def main():
        context = Context(LEASE, "a", None)
        assert context.latest is None
        await context.checkpoint_async()

    asyncio.run(main())


def test_a_refused_checkpoint_says_that_the_lease_is_lost():
    error, _ = checkpoint_by({"on_batch": lambda b, c: c.checkpoint()}, events(4), kept=False)
    assert isinstance(error, LeaseLost)
    assert "partition 0 of n/f/g is no longer held in epoch 3" in str(error)
    assert "event 3 was not written" in str(error)


def test_an_event_of_another_partition_cannot_be_checkpointed_here():
    other = events(1, partition="7")[0]
    error, saved = checkpoint_by({"on_batch": lambda b, c: c.checkpoint(other)}, events(4))
    assert isinstance(error, BadInput)
    assert "partition 7" in str(error)
    assert saved == []


def test_a_plain_checkpoint_on_the_loop_is_refused_instead_of_waiting_for_itself():
    async def on_batch(batch, context):
        context.checkpoint()

    error, _ = checkpoint_by({"on_batch": on_batch}, events(1))
    assert isinstance(error, BadInput)
    assert "checkpoint_async" in str(error)


def test_a_checkpoint_after_the_processor_has_stopped_is_refused():
    _, context = handle(events(1), on_event=lambda event: None)
    with pytest.raises(LeaseLost, match="the processor has stopped"):
        context.checkpoint()
