"""What every sink must do: each event's effect exactly once, under crashes, zombies, lost answers
and rewinds. A sink is done when all of these pass.

``CHECKS`` lists the rules one by one, so that a test runner can report each by name;
``check_sink`` runs them all. A check gets a ``World`` around a sink that is empty and that nobody
else uses.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from leasehold.core.ranges import Range
from leasehold.errors import SinkUnavailable, StaleBatch
from leasehold.testing.number_line import EVENTS, PARTITIONS
from leasehold.testing.sink_world import Crash, Job, RewindJob, SinkUnderTest, World, run

Check = Callable[[World], None]

CHECKS: list[Check] = []
BOTH = dict.fromkeys(PARTITIONS, 5)
WALKS, STEPS = 8, 12


def check(rule: Check) -> Check:
    CHECKS.append(rule)
    return rule


def check_sink(fresh: Callable[[], SinkUnderTest]) -> None:
    """``fresh`` gives an empty sink each time."""
    for rule in CHECKS:
        rule(World(fresh()))


@check
def each_event_is_there_once(world: World) -> None:
    for _ in range(3):
        world.write("one", "i1", BOTH)
        world.check()
    world.finish()


@check
def a_batch_that_is_there_is_not_written_again_and_not_refused(world: World) -> None:
    """Another sink that is written to in the same ``on_batch`` may not have it yet."""
    world.write("one", "i1", {"0": 5})
    for instance in ("i1", "i2"):
        for first, end in ((0, 5), (2, 4)):
            wanted = [Range(partition="0", first=first, end=end)]
            try:
                assert not world.write_once("one", instance, wanted, Job()), "it counts as done"
            except StaleBatch as stale:
                raise AssertionError(f"{wanted} is there as a whole, and was refused") from stale
            world.check()
    world.finish()


@check
def a_batch_that_is_there_in_part_is_refused_and_says_where_to_continue(world: World) -> None:
    world.write("one", "i1", {"0": 5})
    for instance in ("i1", "i2"):
        stale = _refused(world, instance, Range(partition="0", first=3, end=9))
        assert stale.begin_at == {"0": 5}
    world.finish()


@check
def of_a_batch_that_is_there_in_part_nothing_is_written(world: World) -> None:
    world.write("one", "i1", {"0": 5})
    fresh = Range(partition="1", first=0, end=5)
    stale = _refused(world, "i1", Range(partition="0", first=0, end=5), fresh)
    assert stale.begin_at == {"0": 5}, "only what is stale is named"
    world.check()
    world.finish()


@check
def a_gap_is_no_error_because_dead_letters_and_retention_leave_some(world: World) -> None:
    world.write("one", "i1", {"0": 5})
    _behind_a_gap(world, Range(partition="0", first=6, end=8))
    found = sorted(row["sequence"] for row in world.under_test.rows())
    assert found == [0, 1, 2, 3, 4, 6, 7]


@check
def what_crashed_before_its_commit_is_not_there(world: World) -> None:
    _crashes(world, Job(after_job=_crash))
    _crashes(world, Job(at_commit="crash before"))
    assert not list(world.under_test.rows())
    world.finish()


@check
def what_crashed_between_commit_and_checkpoint_is_not_written_again(world: World) -> None:
    """However often: a batch that is there is skipped, one that is there in part is cut."""
    for size in (4, 9, 12):
        _crashes(world, Job(at_commit="crash after"), {"0": size})
    assert world.reader("one").streams["0"].batches == [(0, 4), (4, 9), (9, 12)]
    world.finish()


@check
def a_commit_whose_answer_was_lost_counts_once(world: World) -> None:
    for fault in world.under_test.lost_answers:
        with suppress(SinkUnavailable):
            world.write("one", "i1", BOTH, Job(at_commit=fault))
        world.check()
    world.finish()


@check
def a_zombie_writes_nothing_that_the_new_owner_has_written(world: World) -> None:
    def overtaken() -> None:
        world.write("one", "i2", BOTH)

    world.write("one", "i1", BOTH, Job(after_job=overtaken))
    world.write("one", "i1", BOTH, Job(before_commit=overtaken))
    world.check()
    world.finish()


@check
def reading_in_the_middle_of_a_write_lets_no_zombie_commit(world: World) -> None:
    def overtaken() -> None:
        world.write("one", "i2", BOTH)
        reader = world.reader("one")
        world.sink("i1").rewinding(reader.group, reader.feed.identity).marks()
        list(world.under_test.rows())

    world.write("one", "i1", BOTH, Job(after_job=overtaken))
    world.check()


@check
def a_partition_whose_lease_is_lost_is_left_out_and_stays_so(world: World) -> None:
    """A renewal that comes late brings nothing back."""
    world.write("one", "i1", BOTH, Job(lost=[True, False]))
    assert {p: stream.done for p, stream in world.reader("one").streams.items()} == {"0": 5, "1": 0}
    world.check()
    world.finish()


@check
def a_partition_whose_lease_is_lost_costs_itself_only(world: World) -> None:
    """The work on the others counts: it is not done again."""
    ranges = [Range(partition=partition, first=0, end=5) for partition in PARTITIONS]
    try:
        left_out = world.write_once("one", "i1", ranges, Job(lost=[True]))
    except StaleBatch as stale:
        raise AssertionError("the rest of the batch was not written") from stale
    assert set(left_out) == {PARTITIONS[-1]}, "the batch is told what was left out"
    world.check()
    world.finish()


@check
def letters_of_what_was_not_read_are_put_before_the_commit(world: World) -> None:
    """``World`` looks at each commit."""
    world.write("one", "i1", BOTH)
    world.finish()


@check
def writers_of_other_partitions_do_not_disturb_one_another(world: World) -> None:
    def beside() -> None:
        world.write("one", "i2", {"1": 4})

    world.write("one", "i1", {"0": 3}, Job(before_commit=beside))
    assert {p: stream.done for p, stream in world.reader("one").streams.items()} == {"0": 3, "1": 4}
    world.check()


@check
def groups_and_recreated_feeds_share_a_sink(world: World) -> None:
    world.write("one", "i1", BOTH)
    world.write("two", "i1", BOTH)
    world.generation += 1
    world.write("one", "i1", BOTH)
    world.check()
    world.finish()


@check
def what_was_rewound_is_gone_and_can_be_written_again(world: World) -> None:
    for _ in range(3):
        world.write("one", "i1", BOTH)
    world.rewind("one", 7, ["0"])
    world.check()
    assert world.reader("one").streams["0"].done <= 7
    assert world.reader("one").streams["1"].done == 15
    world.write("one", "i1", BOTH)
    world.finish()


@check
def a_rewind_touches_its_own_feed_and_group_alone(world: World) -> None:
    world.write("two", "i1", BOTH)
    world.write("one", "i1", BOTH)
    world.generation += 1
    world.write("one", "i1", BOTH)
    world.rewind("one", 0, PARTITIONS)
    world.check()
    world.finish()


@check
def nobody_writes_before_a_rewind_is_finished(world: World) -> None:
    for stage, fault in (("begin", "crash after"), ("finish", "crash before")):
        world.write("one", "i1", BOTH)
        with suppress(Crash):
            world.rewind("one", 0, PARTITIONS, RewindJob(at=fault, stage=stage))
        assert all(stream.marked for stream in world.reader("one").streams.values())
        _unavailable(world)
        world.rewind("one", 0, PARTITIONS)
        world.check()
    world.finish()


@check
def a_crash_anywhere_in_a_rewind_is_mended_by_doing_it_again(world: World) -> None:
    for stage in ("begin", "finish"):
        for fault in ("crash before", "crash after"):
            world.write("one", "i1", BOTH)
            with suppress(Crash):
                world.rewind("one", 2, PARTITIONS, RewindJob(at=fault, stage=stage))
            world.check()
            world.rewind("one", 2, PARTITIONS)
            world.check()
    world.finish()


@check
def a_rewind_whose_answer_was_lost_removes_nothing_that_came_since(world: World) -> None:
    for fault in world.under_test.lost_answers:
        world.write("one", "i1", BOTH)

        def since() -> None:
            world.write("one", "i2", {"0": 3, "1": 4})

        with suppress(SinkUnavailable):
            world.rewind("one", 0, PARTITIONS, RewindJob(at=fault, stage="finish", since=since))
        world.check()
        assert {p: stream.done for p, stream in world.reader("one").streams.items()} == {
            "0": 3,
            "1": 4,
        }
    world.finish()


@check
def a_write_under_way_while_its_sink_is_rewound_writes_nothing(world: World) -> None:
    """Neither does it leave a gap, if it looks again and finds the sink behind itself."""

    def rewound() -> None:
        world.rewind("one", 5, PARTITIONS)

    for job in (Job(after_job=rewound), Job(before_commit=rewound)):
        for _ in range(2):
            world.write("one", "i1", BOTH)
        world.write("one", "i1", BOTH, job)
        world.check()
        assert world.reader("one").streams["0"].done == 5
    world.finish()


@check
def a_batch_of_before_a_rewind_leaves_no_gap_however_new_its_process_is(world: World) -> None:
    """It has its lease from before, has written nothing yet, and has not heard of the rewind."""

    def rewound() -> None:
        world.rewind("one", 5, PARTITIONS)

    for _ in range(2):
        for _ in range(4):
            world.write("one", "i1", BOTH)
        world.sinks.clear()
        world.write("one", "i1", BOTH, Job(before_write=rewound))
        world.check()
        assert world.reader("one").streams["0"].done == 5
    world.finish()


@check
def a_batch_of_before_a_rewind_leaves_no_gap_although_its_process_has_written_since(
    world: World,
) -> None:
    def rewound() -> None:
        world.rewind("one", 0, PARTITIONS)
        world.write("one", "i1", BOTH)

    for job in (Job(after_job=rewound), Job(before_commit=rewound)):
        for _ in range(4):
            world.write("one", "i1", BOTH)
        world.write("one", "i1", BOTH, job)
        world.check()
        assert world.reader("one").streams["0"].done == 5
    world.finish()


@check
def a_gap_is_no_error_after_a_rewind_and_not_after_one_that_was_cancelled_either(
    world: World,
) -> None:
    for _ in range(2):
        world.write("one", "i1", {"0": 5})
    world.rewind("one", 5, ["0"])
    _behind_a_gap(world, Range(partition="0", first=6, end=8))
    reader = world.reader("one")
    rewind = world.under_test.open().rewinding(reader.group, reader.feed.identity)
    rewind.begin(["0"])
    rewind.cancel(["0"])
    _behind_a_gap(world, Range(partition="0", first=9, end=11))
    found = sorted(row["sequence"] for row in world.under_test.rows())
    assert found == [0, 1, 2, 3, 4, 6, 7, 9, 10]


@check
def a_write_under_way_while_a_rewind_begins_writes_nothing(world: World) -> None:
    def begins() -> None:
        with suppress(Crash):
            world.rewind("one", 0, PARTITIONS, RewindJob(at="crash before", stage="finish"))

    world.write("one", "i1", BOTH)
    with suppress(SinkUnavailable):
        world.write("one", "i1", BOTH, Job(before_commit=begins))
    world.check()
    world.finish()


@check
def events_with_the_sequences_of_lost_ones_wait_for_a_rewind(world: World) -> None:
    """The feed was rolled back: the same sequences hold other events now."""
    for _ in range(2):
        world.write("one", "i1", BOTH)
    for partition in PARTITIONS:
        world.reader("one").feed.roll_back(partition, 6)
    assert "leasehold rewind" in str(_unavailable(world)), "the error names the remedy"
    world.rewind("one", 6, PARTITIONS)
    world.check()
    world.finish()


@check
def a_rewind_does_not_end_in_what_the_feed_has_lost(world: World) -> None:
    for _ in range(3):
        world.write("one", "i1", BOTH)
    for partition in PARTITIONS:
        world.reader("one").feed.roll_back(partition, 6)
    world.rewind("one", 10, PARTITIONS)
    assert world.reader("one").streams["0"].done <= 6
    world.check()
    world.finish()


@check
def whatever_happens_in_whatever_order_each_event_counts_once(world: World) -> None:
    """Walks by chance, each from its seed and each in a group of its own."""
    for seed in range(WALKS):
        _walk(world, Random(seed), f"walk-{seed}")
    world.finish()


def _walk(world: World, chance: Random, name: str) -> None:
    def sizes() -> dict[str, int]:
        chosen = chance.sample(PARTITIONS, chance.randint(1, len(PARTITIONS)))
        return {partition: chance.randint(1, 9) for partition in chosen}

    def meanwhile() -> None:
        chance.choice([nothing, _crash, overtaken, rewound])()

    def nothing() -> None: ...

    def overtaken() -> None:
        _attempt(world, name, "i3", dict.fromkeys(PARTITIONS, 3), Job())

    def rewound() -> None:
        if written():
            world.rewind(name, chance.randint(0, 20), PARTITIONS)

    def written() -> bool:
        return any(stream.done for stream in world.reader(name).streams.values())

    for _ in range(STEPS):
        fault = chance.choice(["", "", *world.faults])
        match chance.choice(["write", "write", "write", "rewind", "roll back", "restart"]):
            case "write":
                lost = [chance.random() < 0.5 for _ in range(chance.choice([0, 0, 2]))]
                at = chance.choice(["before_write", "after_job", "before_commit"])
                job = Job(lost=lost, at_commit=fault)
                setattr(job, at, meanwhile)
                _attempt(world, name, chance.choice(["i1", "i2"]), sizes(), job)
            case "rewind" if written():
                stage = chance.choice(["begin", "finish"])
                with suppress(Crash, SinkUnavailable):
                    job_ = RewindJob(at=fault, stage=stage, since=overtaken)
                    world.rewind(name, chance.randint(0, 30), PARTITIONS, job_)
            case "roll back":
                feed = world.reader(name).feed
                feed.roll_back(chance.choice(PARTITIONS), chance.randint(0, EVENTS // 2))
            case "restart":
                world.sinks.clear()
        world.check()


def _attempt(world: World, name: str, instance: str, sizes: dict[str, int], job: Job) -> None:
    reader, faulty = world.reader(name), job.at_commit in world.under_test.lost_answers
    try:
        world.write(name, instance, sizes, job)
    except Crash:
        world.sinks.pop(instance, None)
    except SinkUnavailable:
        marked = any(reader.streams[partition].marked for partition in sizes)
        lost = any(reader.is_lost(partition) for partition in sizes)
        if not (faulty or marked or lost):
            raise


def _refused(world: World, instance: str, *ranges: Range) -> StaleBatch:
    try:
        world.write_once("one", instance, ranges, Job())
    except StaleBatch as stale:
        return stale
    raise AssertionError(f"{ranges} was written although some of it is there")


def _behind_a_gap(world: World, wanted: Range) -> None:
    reader = world.reader("one")
    run(reader.store.acquire([reader.leases()[wanted.partition]], "i1", 60.0))
    batch = world.batch("one", "i1", [wanted])
    world.sink("i1").write(world.under_test.frame(reader.rows(wanted)), batch)


def _unavailable(world: World) -> SinkUnavailable:
    try:
        world.write("one", "i1", BOTH)
    except SinkUnavailable as why:
        return why
    raise AssertionError("it was written although it has to wait")


def _crashes(world: World, job: Job, sizes: dict[str, int] | None = None) -> None:
    try:
        world.write("one", "i1", sizes or BOTH, job)
    except Crash:
        world.sinks.clear()
        return
    raise AssertionError("the hook `commits` was not called for a commit")


def _crash() -> None:
    raise Crash
