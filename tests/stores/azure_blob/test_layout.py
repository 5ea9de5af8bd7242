import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.errors import BadInput, NewerVersion
from leasehold.local.blob import Blob
from leasehold.stores.azure_blob import layout
from leasehold.stores.azure_blob import names as azure_names
from leasehold.stores.azure_blob.layout import Claim, StoredProgress
from leasehold.stores.azure_blob.listing import groups_of, read_listing

GROUP = Group(namespace="NS.servicebus.windows.net", feed="Hub", name="$Default")
HEADER_SAFE = re.compile(r"([!-~]+( [!-~]+)*)?")

text = st.text(st.characters(exclude_categories=["Cs"]))
names = text.filter(bool)
groups = st.builds(Group, namespace=names, feed=names, name=names)
numbers = st.integers(0, 2**63)
seconds = st.floats(0.001, 1e9)
checkpoints = st.builds(Checkpoint, next_sequence=numbers, token=text)
claims = st.builds(
    Claim,
    owner=st.none() | names,
    epoch=numbers,
    ttl_s=seconds,
    weight=seconds,
    offered_to=st.none() | names,
)
progresses = st.builds(
    StoredProgress,
    checkpoint=checkpoints,
    holder=st.none() | names,
    epoch=numbers,
    advanced=st.booleans(),
    attempts=numbers,
    children=st.none() | st.dictionaries(names, checkpoints, max_size=3),
)


def blob(metadata: dict[str, str], name: str = "a/b/c/checkpoint/0", etag: str = "0x1") -> Blob:
    return Blob(name=name, etag=etag, metadata=metadata, modified_s=100.0, date_s=103.0)


def lease(owner: str | None, epoch: int, sequence: int = 0, attempts: int = 0) -> Lease:
    at = Checkpoint(next_sequence=sequence, token=str(sequence))
    return Lease(
        group=GROUP, partition="0", checkpoint=at, owner=owner, epoch=epoch, attempts=attempts
    )


def progress_blob(partition: str, progress: StoredProgress, group: Group = GROUP) -> Blob:
    return blob(
        layout.write_progress(group, partition, progress),
        azure_names.checkpoint_name("", group, partition),
        etag=f"c-{partition}",
    )


def claim_blob(partition: str, claim: Claim, group: Group = GROUP) -> Blob:
    return blob(
        layout.write_claim(group, partition, claim),
        azure_names.ownership_name("", group, partition),
        etag=f"o-{partition}",
    )


def test_blobs_are_named_as_the_official_sdks_name_them() -> None:
    assert (
        azure_names.ownership_name("", GROUP, "12")
        == "ns.servicebus.windows.net/hub/$default/ownership/12"
    )
    assert (
        azure_names.checkpoint_name("x/", GROUP, "12")
        == "x/ns.servicebus.windows.net/hub/$default/checkpoint/12"
    )


@given(groups, names)
def test_any_name_stays_one_part_of_the_path(group: Group, partition: str) -> None:
    name = azure_names.checkpoint_name("", group, partition)
    assert len(name.split("/")) == 5
    assert not any(part.endswith(".") or part == "" for part in name.split("/"))
    assert azure_names.member_name("", group, partition).count("/") == 5


@given(names, names)
def test_two_partitions_share_a_blob_only_if_they_differ_in_nothing_but_case(
    one: str, other: str
) -> None:
    same = azure_names.checkpoint_name("", GROUP, one) == azure_names.checkpoint_name(
        "", GROUP, other
    )
    assert same == (one.lower() == other.lower())


@given(names, names)
def test_two_instances_never_share_a_blob(one: str, other: str) -> None:
    same = azure_names.member_name("", GROUP, one) == azure_names.member_name("", GROUP, other)
    assert same == (one == other)


@given(groups, names, claims)
def test_a_claim_comes_back_as_it_was(group: Group, partition: str, claim: Claim) -> None:
    metadata = layout.write_claim(group, partition, claim)
    assert all(HEADER_SAFE.fullmatch(value) for value in metadata.values())
    assert layout.read_claim(blob(metadata)) == claim


@given(groups, names, progresses, st.booleans())
def test_progress_comes_back_as_it_was(
    group: Group, partition: str, progress: StoredProgress, closed: bool
) -> None:
    progress = replace(progress, closed=closed and progress.children is not None)
    metadata = layout.write_progress(group, partition, progress)
    assert all(HEADER_SAFE.fullmatch(value) for value in metadata.values())
    assert layout.read_progress(blob(metadata)) == progress


# What others may have left on a checkpoint blob: blank is a value of its own (.NET since 5.11).
offsets = st.sampled_from(["", "no offset", "No Offset", "None", "-1", "4200", "@latest"])
sequences = st.sampled_from(["", "-1", "0", "41", "9223372036854775807", "?", "041"])
others = st.dictionaries(
    st.from_regex(r"[a-km-z_][a-z0-9_]{0,20}", fullmatch=True), st.from_regex(r"[!-~]{0,20}")
)
foreign_points = st.tuples(
    st.fixed_dictionaries({}, optional={"offset": offsets, "sequencenumber": sequences}), others
).map(lambda both: both[1] | both[0])


@given(foreign_points, claims.map(lambda claim: claim.owner or "w"), st.booleans())
def test_taking_and_releasing_changes_nothing_that_others_wrote(
    metadata: dict[str, str], owner: str, tried: bool
) -> None:
    before = layout.read_progress(blob(metadata))
    if before is None:
        assert metadata.keys().isdisjoint(layout.POSITION)
        return
    taken = replace(before, holder=owner, epoch=5, ours=True)
    written = layout.write_progress(GROUP, "0", taken)
    if tried:  # a failed try is counted, and the position stays
        held = replace(lease(owner, 5), checkpoint=before.checkpoint, attempts=3)
        written = layout.write_progress(GROUP, "0", layout.advance(taken, held))
    again = layout.read_progress(blob(written))
    assert again is not None
    assert again.checkpoint == before.checkpoint
    released = layout.write_progress(GROUP, "0", replace(again, holder=None))
    for stage in (written, released):
        assert {k: v for k, v in stage.items() if k in metadata} == metadata
        assert all(key.startswith("l") for key in stage.keys() - metadata.keys())


@given(foreign_points)
def test_a_position_that_somebody_chose_is_never_left_blank(metadata: dict[str, str]) -> None:
    before = layout.read_progress(blob(metadata | {"offset": "", "sequencenumber": ""}))
    assert before is not None
    rewound = layout.write_progress(GROUP, "0", before.sent_to(Checkpoint(next_sequence=0)))
    assert (rewound["offset"], rewound["sequencenumber"]) == ("-1", "-1")
    moved = layout.advance(before, lease("w", 1, 42))
    written = layout.write_progress(GROUP, "0", moved)
    assert (written["offset"], written["sequencenumber"]) == ("42", "41")
    assert {k: v for k, v in written.items() if k in metadata.keys() - layout.POSITION} == {
        k: v for k, v in metadata.items() if k not in layout.POSITION
    }


@given(others, claims, st.booleans())
def test_a_claim_keeps_what_others_wrote_beside_it(
    metadata: dict[str, str], claim: Claim, stock: bool
) -> None:
    there = metadata | {"ownerid": "stock"}
    if not stock:
        there |= layout.write_claim(GROUP, "0", Claim(owner="a"))
    kept = layout.read_claim(blob(there)).kept
    written = layout.write_claim(GROUP, "0", replace(claim, kept=kept))
    assert {k: v for k, v in written.items() if k in metadata} == metadata
    assert layout.read_claim(blob(written)) == claim


@given(names, text, seconds, st.booleans())
def test_a_member_comes_back_as_it_was(
    instance: str, incarnation: str, ttl_s: float, leaving: bool
) -> None:
    member = Member(instance=instance, incarnation=incarnation, ttl_s=ttl_s, leaving=leaving)
    metadata = layout.write_member(member)
    assert all(HEADER_SAFE.fullmatch(value) for value in metadata.values())
    found = layout.read_member(blob(metadata))
    assert found is not None
    assert found.version
    assert replace(found, age_s=0.0, version="") == member


@given(groups, names)
def test_names_come_back_in_their_own_case(group: Group, partition: str) -> None:
    for made in (
        progress_blob(partition, StoredProgress(checkpoint=Checkpoint(next_sequence=0)), group),
        claim_blob(partition, Claim(), group),
    ):
        assert layout.real_names("", made) == (group, partition)


def test_a_copied_blob_does_not_speak_for_its_original() -> None:
    made = progress_blob("0", StoredProgress(checkpoint=Checkpoint(next_sequence=0)))
    assert layout.real_names("", replace(made, name="else/hub/g/checkpoint/0")) is None


@given(checkpoints)
def test_stock_readers_find_a_number_and_an_offset_in_every_checkpoint(at: Checkpoint) -> None:
    metadata = layout.write_progress(GROUP, "0", StoredProgress(checkpoint=at))
    assert int(metadata["sequencenumber"]) == at.next_sequence - 1
    assert metadata["offset"]  # an empty one reads as None, and stock Python goes to offset "None"


def test_the_earliest_start_is_what_stock_readers_call_earliest() -> None:
    at = Checkpoint(next_sequence=0, token="-1")
    metadata = layout.write_progress(GROUP, "0", StoredProgress(checkpoint=at))
    assert (metadata["sequencenumber"], metadata["offset"]) == ("-1", "-1")


def test_a_plain_owner_is_shown_as_is_and_an_odd_one_encoded() -> None:
    for owner, shown in (
        ("worker 1", "worker 1"),
        ("x%2Fy", "x%2Fy"),
        ("Wörker", "W%C3%B6rker"),
        ("two  spaces", "two%20%20spaces"),
        ("line\nbreak", "line%0Abreak"),
    ):
        assert layout.write_claim(GROUP, "0", Claim(owner=owner))["ownerid"] == shown
    assert layout.write_claim(GROUP, "0", Claim())["ownerid"] == ""


@pytest.mark.parametrize(
    ("metadata", "at"),
    [
        ({"offset": "4100", "sequencenumber": "40"}, Checkpoint(next_sequence=41, token="4100")),
        ({"offset": "4100", "sequencenumber": ""}, Checkpoint(next_sequence=0, token="4100")),
        (
            {"offset": "4100", "sequencenumber": "-9223372036854775808"},
            Checkpoint(next_sequence=0, token="4100"),
        ),
        ({"offset": "no offset", "sequencenumber": "7"}, Checkpoint(next_sequence=8)),
        ({"offset": "", "sequencenumber": "7"}, Checkpoint(next_sequence=8)),
        ({"offset": "12"}, Checkpoint(next_sequence=0, token="12")),
        ({"sequencenumber": "7", "clientidentifier": "x"}, Checkpoint(next_sequence=8)),
        ({"offset": "None", "sequencenumber": "None"}, Checkpoint(next_sequence=0)),
    ],
)
def test_checkpoints_of_every_stock_sdk_can_be_read(
    metadata: dict[str, str], at: Checkpoint
) -> None:
    progress = layout.read_progress(blob(metadata))
    assert progress == StoredProgress(checkpoint=at, advanced=True, ours=False)


@pytest.mark.parametrize("metadata", [{}, {"hdi_isfolder": "true"}, {"note": "x"}])
def test_an_entry_without_a_position_is_no_checkpoint(metadata: dict[str, str]) -> None:
    assert layout.read_progress(blob(metadata)) is None


def test_a_stock_claim_is_known_by_its_missing_keys() -> None:
    claim = layout.read_claim(blob({"ownerid": "6f3c"}), foreign_ttl_s=70.0)
    assert claim == Claim(owner="6f3c", ttl_s=70.0, ours=False)
    assert layout.read_claim(blob({"ownerid": ""})).owner is None
    assert layout.read_claim(blob({})).owner is None
    assert not claim.held_by(lease("6f3c", 0))


def test_a_newer_layout_is_refused() -> None:
    metadata = layout.write_claim(GROUP, "0", Claim())
    for said in (str(layout.FORMAT + 1), "x"):
        with pytest.raises(NewerVersion, match="upgrade"):
            layout.read_claim(blob(metadata | {"leasehold": said}))


def test_metadata_beyond_azures_limit_is_refused_before_it_is_sent() -> None:
    at = Checkpoint(next_sequence=1, token="t" * layout.METADATA_BYTES_MAX)
    with pytest.raises(BadInput, match="8192"):
        layout.write_progress(GROUP, "0", StoredProgress(checkpoint=at))


@given(st.floats(0, 1e6), st.floats(0, 1e4))
def test_nothing_looks_older_than_it_is(written: float, later: float) -> None:
    now = written + later
    seen = Blob(
        name="", etag="", metadata={}, modified_s=math.floor(written), date_s=math.floor(now)
    )
    assert seen.age_s <= now - written + 1e-6
    assert seen.age_s >= now - written - 2


def test_an_age_just_above_a_whole_second_counts() -> None:
    seen = Blob(name="", etag="", metadata={}, modified_s=100.0, date_s=102.0)
    assert seen.age_s > 1.0  # at least 100.999… to 102.0


@given(claims, progresses, st.booleans(), st.booleans(), st.integers(0, 2**40))
def test_the_next_epoch_is_above_every_known_one(
    claim: Claim, progress: StoredProgress, claim_ours: bool, progress_ours: bool, date: int
) -> None:
    claim, progress = replace(claim, ours=claim_ours), replace(progress, ours=progress_ours)
    epoch = layout.next_epoch(claim, progress, date)
    assert epoch > max(claim.epoch, progress.epoch)
    assert epoch >= date or claim_ours
    assert layout.next_epoch(None, progress, date) > progress.epoch


def test_an_epoch_rises_by_one_among_our_own() -> None:
    progress = StoredProgress(checkpoint=Checkpoint(next_sequence=0), epoch=3)
    assert layout.next_epoch(Claim(epoch=4), progress, 1e9) == 5
    assert layout.next_epoch(None, progress, 1e9) == 4
    assert layout.next_epoch(Claim(ours=False), progress, 1e9) == 10**9


@given(progresses, numbers, st.integers(0, 9))
def test_a_checkpoint_never_goes_back(progress: StoredProgress, to: int, attempts: int) -> None:
    after = layout.advance(progress, lease("a", 5, to, attempts))
    assert after.checkpoint.next_sequence == max(progress.checkpoint.next_sequence, to)
    assert (after.holder, after.epoch) == ("a", 5)
    if to < progress.checkpoint.next_sequence:
        assert after.attempts == progress.attempts
        assert after.checkpoint == progress.checkpoint
    if to <= progress.checkpoint.next_sequence:
        assert after.advanced == progress.advanced


def test_only_the_holder_of_the_epoch_may_write() -> None:
    progress = StoredProgress(checkpoint=Checkpoint(next_sequence=0), holder="a", epoch=5)
    assert progress.held_by(lease("a", 5))
    for stranger in (lease("a", 4), lease("a", 6), lease("b", 5), lease(None, 5)):
        assert not progress.held_by(stranger)
        assert not progress.open_to(stranger)
    wiped = StoredProgress(checkpoint=Checkpoint(next_sequence=0), ours=False)
    assert not wiped.held_by(lease(None, 0))
    assert wiped.open_to(lease("a", 5))  # where the claim says so


def test_a_listing_gives_leases_members_and_splits() -> None:
    at = Checkpoint(next_sequence=4, token="400")
    split = StoredProgress(checkpoint=at, children={"2a": at, "2b": at})
    member = Member(instance="W/1", incarnation="x")
    listed = [
        progress_blob("A", StoredProgress(checkpoint=at, epoch=2, attempts=1)),
        claim_blob("A", Claim(owner="w", epoch=3, ttl_s=9.0, weight=2.5)),
        progress_blob("1", StoredProgress(checkpoint=at)),
        progress_blob("2", split),
        claim_blob("2", Claim(owner="w", epoch=3)),
        progress_blob("3", replace(split, closed=True)),
        claim_blob("4", Claim(owner="w", epoch=1)),
        blob(layout.write_member(member), azure_names.member_name("", GROUP, "W/1")),
    ]
    listing = read_listing(GROUP, "", listed, 103.0, 180.0)
    snapshot, unfinished = listing.snapshot, listing.unfinished
    one, a = snapshot.leases
    assert (a.partition, a.owner, a.epoch, a.version) == ("A", "w", 3, "o-A")
    assert (a.checkpoint, a.attempts, a.weight, a.ttl_s) == (at, 1, 2.5, 9.0)
    assert 2.0 < a.age_s < 2.1
    assert (one.partition, one.owner, one.version, one.advanced) == ("1", None, "", False)
    assert 2.0 < one.age_s < 2.1
    (seen,) = snapshot.members
    assert seen.version
    assert replace(seen, age_s=member.age_s, version=member.version) == member
    assert snapshot.replaced == {"2", "3"}
    assert unfinished == {"2": listed[3]}
    assert snapshot.taken_at == 103.0


def test_a_listing_with_foreign_entries_is_read_all_the_same() -> None:
    root = azure_names.root_name("", GROUP)
    listed = [
        blob({"hdi_isfolder": "true"}, f"{root}ownership"),
        blob({"hdi_isfolder": "true"}, f"{root}checkpoint/7"),
        blob({}, f"{root}checkpoint/8"),
        blob({}, f"{root}checkpoint/"),
        blob({"offset": "5", "sequencenumber": ""}, f"{root}checkpoint/9"),
        blob({"ownerid": "stock"}, f"{root}ownership/9"),
        blob({"ownerid": "stock"}, f"{root}ownership/10"),
        blob({"x": "y"}, f"{root}notes/deep/er/1"),
        blob({"x": "y"}, f"{root}leasehold/member/odd"),
        blob({"offset": "1"}, f"{root}checkpoint/9/backup"),
    ]
    listing = read_listing(GROUP, "", listed, 103.0, 180.0)
    snapshot, unfinished = listing.snapshot, listing.unfinished
    (found,) = snapshot.leases
    assert (found.partition, found.owner, found.ttl_s) == ("9", "stock", 180.0)
    assert found.checkpoint == Checkpoint(next_sequence=0, token="5")
    assert found.advanced
    assert (snapshot.members, unfinished) == ((), {})


def test_a_partition_keeps_its_case_when_a_stock_checkpoint_drops_the_name() -> None:
    stock = blob(
        {"offset": "5", "sequencenumber": "1"}, azure_names.checkpoint_name("", GROUP, "A")
    )
    snapshot = read_listing(GROUP, "", [stock, claim_blob("A", Claim())], 103.0, 180.0).snapshot
    assert [found.partition for found in snapshot.leases] == ["A"]
    snapshot = read_listing(GROUP, "", [stock], 103.0, 180.0).snapshot
    assert [found.partition for found in snapshot.leases] == ["a"]


def test_groups_are_those_with_a_lease_in_their_own_case() -> None:
    at = Checkpoint(next_sequence=0)
    stock = Group(namespace="ns", feed="hub", name="stock")
    gone = Group(namespace="ns", feed="hub", name="gone")
    listed = [
        progress_blob("0", StoredProgress(checkpoint=at)),
        blob({"offset": "5", "sequencenumber": "1"}, azure_names.checkpoint_name("", GROUP, "1")),
        blob({"offset": "5", "sequencenumber": "1"}, azure_names.checkpoint_name("", stock, "1")),
        progress_blob("0", StoredProgress(checkpoint=at, children={}), gone),
        blob({"ownerid": "x"}, "ns/hub/claims-only/ownership/0"),
        blob({}, "unrelated"),
    ]
    assert groups_of("", listed) == (GROUP, stock)
    assert groups_of("other/", listed) == ()
