import subprocess
import sys
import threading

import pytest

from leasehold.processor import threads as module
from leasehold.processor.threads import HandlerThreads


def test_calls_run_in_other_threads_and_give_back_what_came_of_them():
    threads = HandlerThreads("t")
    here = threading.get_ident()
    assert threads.submit(threading.get_ident).result() != here
    assert threads.submit(pow, 2, exp=3).result() == 8
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result()
    with pytest.raises(SystemExit):
        threads.submit(sys.exit, 3).result()


def test_however_many_calls_wait_another_one_runs():
    threads, go = HandlerThreads("t"), threading.Event()
    waiting = [threads.submit(go.wait) for _ in range(200)]
    assert threads.submit(lambda: "ran").result(timeout=30) == "ran"
    go.set()
    assert all(each.result(timeout=30) for each in waiting)


def test_short_calls_need_few_threads_however_many_there_are(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 600.0)
    threads = HandlerThreads("short")
    calls = [threads.submit(lambda: threading.current_thread().name) for _ in range(5_000)]
    assert len({each.result(timeout=30) for each in calls}) <= module.FEW
    threads.shutdown()


def test_threads_without_a_call_end(monkeypatch):
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    threads, go = HandlerThreads("resting"), threading.Event()
    waiting = [threads.submit(go.wait) for _ in range(100)]
    go.set()
    for each in waiting:
        each.result(timeout=30)
    for thread in threading.enumerate():
        if thread.name.startswith("resting-"):
            thread.join(30)
            assert not thread.is_alive()
    assert threads.submit(lambda: "ran").result(timeout=30) == "ran"


def test_at_the_end_calls_that_have_not_begun_are_cancelled(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 600.0)
    threads, go = HandlerThreads("t"), threading.Event()
    begun = [threads.submit(go.wait) for _ in range(module.FEW)]
    waiting = threads.submit(lambda: "ran")
    threads.shutdown()
    assert waiting.cancelled()
    go.set()
    assert all(each.result(timeout=30) for each in begun)


def test_a_thread_is_used_again():
    threads = HandlerThreads("t")
    names = {threads.submit(lambda: threading.current_thread().name).result() for _ in range(20)}
    assert len(names) < 20


def test_what_a_call_leaves_behind_is_gone_when_the_end_has_come():
    class Left:
        def __del__(self) -> None:
            threading.Event().wait(0.3)
            gone.set()

    threads, gone = HandlerThreads("t"), threading.Event()
    threads.submit(lambda left: None, Left()).result()
    threads.shutdown()
    assert gone.is_set()


def test_the_end_does_not_wait_for_a_call():
    threads, go, began = HandlerThreads("t"), threading.Event(), threading.Event()
    call = threads.submit(lambda: (began.set(), go.wait(60)))
    began.wait(30)
    threads.shutdown()
    assert not call.done()
    go.set()
    call.result(30)


def test_after_the_end_threads_end_and_nothing_new_is_taken():
    threads = HandlerThreads("over")
    threads.submit(int).result()
    threads.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(int)
    for thread in threading.enumerate():
        if thread.name.startswith("over-"):
            thread.join(30)
            assert not thread.is_alive()


def test_a_call_that_never_comes_back_does_not_keep_the_process_from_ending():
    script = (
        "import threading\n"
        "from leasehold.processor.threads import HandlerThreads\n"
        "threads = HandlerThreads('t')\n"
        "threads.submit(threading.Event().wait)\n"
        "threads.shutdown()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=120, check=False)
    assert done.returncode == 0
