from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.processing import until

from leasehold.errors import BadInput
from leasehold.local.threads import OwnThreads


class Client:
    """What blocks, until it is told to go on, and says so if it was closed."""

    def __init__(self) -> None:
        self.go_on, self.closed = threading.Event(), False
        self.used: list[threading.Thread] = []

    def ask(self, number: int = 0) -> int:
        if self.closed:
            raise BadInput("it was closed")
        self.used.append(threading.current_thread())
        assert self.go_on.wait(60)
        return number


def test_threads_that_rest_finish_what_they_have_and_others_do_what_comes() -> None:
    async def scene() -> None:
        threads, client = OwnThreads("x", 2), Client()
        before = [asyncio.ensure_future(threads.run(client.ask, n)) for n in range(5)]
        await asyncio.sleep(0)
        resting = asyncio.ensure_future(threads.rest(lambda: None))
        after = [asyncio.ensure_future(threads.run(client.ask, n)) for n in range(5)]
        await asyncio.sleep(0.05)
        assert not resting.done()
        client.go_on.set()
        assert await asyncio.gather(*before, *after) == [*range(5), *range(5)]
        await resting
        assert threading.current_thread() not in client.used, "the loop never stands still"
        assert len(set(client.used)) <= 4
        threads.close()

    asyncio.run(scene())


def test_what_is_to_be_done_when_they_rest_is_done_once_nobody_uses_them_waited_for_or_not() -> (
    None
):
    async def scene() -> None:
        threads, client, over = OwnThreads("x", 2), Client(), threading.Event()
        before = asyncio.ensure_future(threads.run(client.ask, 1))
        await until(lambda: client.used)
        resting = asyncio.ensure_future(threads.rest(over.set))
        await asyncio.sleep(0)
        resting.cancel()
        after = asyncio.ensure_future(threads.run(over.is_set))
        await asyncio.sleep(0.05)
        assert not over.is_set(), "somebody still uses them"
        client.go_on.set()
        assert await before == 1
        assert await after, "who comes meanwhile waits for it"
        threads.close()

    asyncio.run(scene())


def test_they_rest_although_handlers_occupy_the_loops_own_threads() -> None:
    async def scene() -> None:
        go_on, threads = threading.Event(), OwnThreads("x")
        busy = [asyncio.ensure_future(asyncio.to_thread(go_on.wait, 60)) for _ in range(40)]
        await asyncio.sleep(0)
        await asyncio.wait_for(threads.rest(lambda: None), 30)
        go_on.set()
        await asyncio.gather(*busy)

    asyncio.run(scene())


def test_who_waits_for_a_thread_that_is_closed_is_told_so_and_not_cancelled() -> None:
    async def scene() -> None:
        threads, client = OwnThreads("x", 1), Client()
        asked = [asyncio.ensure_future(threads.run(client.ask, n)) for n in range(5)]
        await until(lambda: client.used)
        client.closed = True
        over = threading.Event()
        threads.close(then=over.set)
        await asyncio.sleep(0.05)
        assert not over.is_set(), "somebody still uses it"
        client.go_on.set()
        first, *others = await asyncio.gather(*asked, return_exceptions=True)
        assert first == 0
        assert over.wait(60)
        assert all(isinstance(each, BadInput) for each in others), others
        with pytest.raises(BadInput):
            await threads.run(client.ask)

    asyncio.run(scene())


def test_who_is_cancelled_is_cancelled_closed_or_not() -> None:
    async def scene() -> None:
        threads, client = OwnThreads("x", 1), Client()
        asked = [asyncio.ensure_future(threads.run(client.ask, n)) for n in range(3)]
        await asyncio.sleep(0)
        for each in asked:
            each.cancel()
        client.closed = True
        threads.close(then=lambda: None)
        client.go_on.set()
        for each in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(each, asyncio.CancelledError)

    asyncio.run(scene())


def test_loops_in_many_threads_may_rest_them_and_ask_at_once() -> None:
    threads, end = OwnThreads("x", 2), time.monotonic() + 0.5

    async def ask() -> None:
        while time.monotonic() < end:
            assert await threads.run(int, "7") == 7
            await threads.rest(lambda: None)

    with ThreadPoolExecutor(4) as loops:
        for each in [loops.submit(asyncio.run, ask()) for _ in range(4)]:
            each.result()
