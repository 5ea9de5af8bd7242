"""Real processes, real signals."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest
from support.processing import (
    FAST,
    PATIENCE_S,
    Seen,
    checkpoints,
    each,
    fill,
    look,
    make_hub,
    make_processor,
    open_leases,
    wait_until,
)

WORKER = """
import asyncio, logging, sys, threading, time
import leasehold as lh

logging.basicConfig(level=logging.INFO)
hub = lh.Hub.open("hub.db")
handled = open("handled", "a", buffering=1)

def on_event(event):
    print(event.partition, event.sequence, file=handled)
    {slow}

def processor(name, **more):
    return lh.Processor(
        hub, group="g", store=lh.open_store("sqlite:///leases.db"), instance=name,
        on_event=on_event, checkpoint=lh.every(events=1000), {settings}, **more
    )

{run}
print("over", flush=True)
"""


@contextmanager
def worker(folder, *, slow="time.sleep(0.01)", run="processor('a').run()", **settings):
    settings = ", ".join(f"{name}={value!r}" for name, value in {**FAST, **settings}.items())
    script = WORKER.format(slow=slow, settings=settings, run=textwrap.dedent(run))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def handled(folder):
    found = {}
    path = folder / "handled"
    for line in path.read_text().splitlines() if path.exists() else ():
        partition, sequence = line.split()
        found.setdefault(partition, []).append(int(sequence))
    return found


def drain(hub, store, **settings):
    seen = Seen()
    make_processor(hub, store, on_event=seen.event, **settings).run(until_drained=True)
    return dict(seen.by_partition)


RUNS = {
    "run": "processor('a').run()",
    "two in one loop": """
        async def main():
            await asyncio.gather(processor("a").run_async(), processor("b").run_async())

        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_finishes_what_is_in_hand_writes_it_down_and_passes_it_on(tmp_path, number, run):
    hub, store = make_hub(tmp_path, events=400), open_leases(tmp_path)
    with worker(tmp_path, run=RUNS[run]) as process:
        wait_until(lambda: sum(map(len, handled(tmp_path).values())) >= 8)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "over\n"), err
    assert "Traceback" not in err
    assert f"{number.name}: stopping in order" in err
    before = handled(tmp_path)
    assert 8 <= sum(map(len, before.values())) < 1600

    async def released():
        seen = await look(store)
        await store.close()
        return seen.members == () and all(lease.owner is None for lease in seen.leases)

    assert asyncio.run(released())
    written = checkpoints(store)
    assert {p: written[p] for p in before} == {p: len(found) for p, found in before.items()}
    # Another goes on just there and at once: these leases would live for a long time yet.
    after = drain(hub, store, instance="b", lease_ttl_s=3600.0)
    assert {p: before.get(p, []) + after[p] for p in after} == each(4, 400)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once(tmp_path, number, code):
    hub, store = make_hub(tmp_path, partitions=1, events=5), open_leases(tmp_path)
    with worker(tmp_path, slow="threading.Event().wait()") as process:
        wait_until(lambda: handled(tmp_path))
        process.send_signal(number)
        for line in process.stderr:
            if "stopping in order" in line:
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert checkpoints(store) == {"0": 0}
    assert drain(hub, store, instance="a") == each(1, 5)


def test_a_handler_that_never_returns_does_not_keep_the_process_for_ever(tmp_path):
    make_hub(tmp_path, partitions=1, events=5)
    with worker(tmp_path, slow="threading.Event().wait()", drain_timeout_s=1.0) as process:
        wait_until(lambda: handled(tmp_path))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "over\n"), err
    assert checkpoints(open_leases(tmp_path)) == {"0": 0}


def test_started_again_under_its_name_it_takes_up_its_leases_at_once(tmp_path):
    hub, store = make_hub(tmp_path, events=400), open_leases(tmp_path)
    with worker(tmp_path, lease_ttl_s=3600.0) as process:
        wait_until(lambda: len(handled(tmp_path)) == 4)
        process.kill()
        process.wait()
    after = drain(hub, store, instance="a")
    assert after == each(4, 400)  # it had written nothing down yet


def test_a_handler_that_kills_its_process_again_and_again_is_counted(tmp_path):
    hub, store = make_hub(tmp_path, partitions=1, events=3), open_leases(tmp_path)
    for _ in range(3):
        with worker(tmp_path, slow="import os; os._exit(9)") as process:
            assert process.wait(PATIENCE_S) == 9

    async def attempts():
        (lease,) = (await look(store)).leases
        await store.close()
        return lease.attempts

    assert asyncio.run(attempts()) > 0
    assert drain(hub, store, instance="a") == each(1, 3)


def test_signals_go_where_they_went_before_once_it_is_over(tmp_path):
    hub, store = make_hub(tmp_path), open_leases(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    mine = []
    signal.signal(signal.SIGTERM, lambda *_: mine.append("mine"))
    try:
        drain(hub, store)
        fill(hub, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: mine)
        assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
