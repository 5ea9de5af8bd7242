"""Ranges that are merged. The embedded container cannot merge, so the endpoint of this test shows
its only range as two, later as the one that they were merged into, and then split again: as Cosmos
DB does, with new ids, the old ones as parents, and 410 for whoever still asks for those."""

import asyncio
import json
from dataclasses import replace

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from leasehold import ChangeFeedProcessor, Estimator, open_feed, open_store
from leasehold.core.ranges import Range
from leasehold.core.start import Earliest
from leasehold.endpoints.cosmos import CosmosEndpoint, EndpointThread, keep_key
from leasehold.endpoints.cosmos.refusals import RANGE_GONE, Refusal
from leasehold.endpoints.cosmos.replies import refused
from leasehold.errors import BadInput
from leasehold.feeds.effective_keys import effective_key
from leasehold.spark.source.positions import advance, initial, still_there

MIDDLE, QUARTER = "1F" + "F" * 30, "0F" + "F" * 30
HALVES = {"1": ("", MIDDLE, []), "2": (MIDDLE, "FF", [])}
MERGED = {"3": ("", "FF", ["1", "2"])}
SPLIT_AS_BEFORE = {"4": ("", MIDDLE, ["1", "2", "3"]), "5": (MIDDLE, "FF", ["1", "2", "3"])}
SPLIT_ELSEWHERE = {"4": ("", QUARTER, ["1", "2", "3"]), "5": (QUARTER, "FF", ["1", "2", "3"])}
ASKED = "x-ms-documentdb-partitionkeyrangeid"
FIRST, LAST = "x-ms-start-epk", "x-ms-end-epk"


class MergingEndpoint(CosmosEndpoint):
    shown = HALVES

    def _safely(self, request):
        if "/pkranges" in request.target:
            return self._ranges(request)
        range = request.headers.get(ASKED, "").rpartition(",")[2]
        if not range:
            return super()._safely(request)
        if range not in self.shown:
            return refused(Refusal(410, f"{range} is gone", substatus=RANGE_GONE))
        low, end, _ = self.shown[range]
        headers = {**request.headers, ASKED: "0"}
        headers[FIRST] = max(low, headers.get(FIRST, low))
        headers[LAST] = min(end, headers.get(LAST, end))
        return super()._safely(replace(request, headers=headers))

    def _ranges(self, request):
        etag = f'"{"-".join(self.shown)}"'
        headers = {key: value for key, value in request.headers.items() if key != "if-none-match"}
        answer = super()._safely(replace(request, headers=headers))
        if request.headers.get("if-none-match") == etag:
            return replace(answer, status=304, headers={**answer.headers, "etag": etag}, body=b"")
        body = json.loads(answer.body)
        (whole,) = body["PartitionKeyRanges"]
        shown = [
            whole | {"id": id, "minInclusive": low, "maxExclusive": end, "parents": parents}
            for id, (low, end, parents) in self.shown.items()
        ]
        text = json.dumps(body | {"PartitionKeyRanges": shown, "_count": len(shown)}).encode()
        sized = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return replace(answer, headers={**sized, "etag": etag}, body=text)


@pytest.fixture
def merging(tmp_path, monkeypatch):
    key = keep_key(tmp_path / "master.key")
    made = MergingEndpoint(folder=tmp_path / "account", key=key, port=0)
    monkeypatch.setenv("AZURE_COSMOS_KEY", key)
    with EndpointThread(made) as endpoint, CosmosClient(endpoint.url, key) as client:
        client.create_database("homes").create_container("c", PartitionKey("/k"))
        yield endpoint


def url_of(merging):
    return f"cosmos://127.0.0.1:{merging.port}/homes/c"


def write(merging, first, end):
    container = merging.account.database("homes").collection("c").container
    container.upsert_many({"id": str(n), "k": f"k{n}"} for n in range(first, end))


def test_leases_of_merged_ranges_go_on_with_their_own_keys(merging, tmp_path):
    """Nothing is lost or told twice, and nobody begins the merged range anew."""
    url = url_of(merging)
    store_url = f"sqlite:///{tmp_path}/leases.db"
    got: list[tuple[str, str]] = []

    def processor(name):
        return ChangeFeedProcessor(
            open_feed(url),
            name=name,
            start="beginning",
            store=open_store(store_url),
            on_changes=lambda changes: got.extend(
                (change.partition, change.document["id"]) for change in changes
            ),
            poll_interval_s=0.05,
            balance_interval_s=0.2,
        )

    async def until(count):
        async with asyncio.timeout(30):
            while len(got) < count:  # noqa: ASYNC110  # another thread fills it
                await asyncio.sleep(0.02)

    async def work():
        write(merging, 0, 40)
        running = processor("notify")
        task = asyncio.ensure_future(running.run_async())
        await until(40)
        merging.shown = MERGED
        write(merging, 40, 80)
        await until(80)
        await asyncio.sleep(0.5)  # a few looks at the ranges: a lease of the merged one would show
        running.stop()
        await task
        feed, store = open_feed(url), open_store(store_url)
        estimate = await Estimator(feed, group="notify", store=store).observe()
        write(merging, 80, 120)
        behind = await Estimator(feed, group="notify", store=store).observe()
        feed.close()
        await store.close()
        return estimate, behind

    estimate, behind = asyncio.run(work())
    assert sorted(id for _, id in got) == sorted(str(n) for n in range(80))
    assert {partition for partition, _ in got} == {"1", "2"}
    assert {each.partition for each in estimate.partitions if each.owner} <= {"1", "2"}
    assert estimate.lag_events == 0
    assert behind.lag_events >= 40
    processor("notify").run(until_drained=True)
    assert len(got) == len(set(got)) == 120
    got.clear()
    processor("later").run(until_drained=True)
    assert {partition for partition, _ in got} == {"3"}
    assert len(got) == 120


def test_leases_of_merged_ranges_are_handed_on_once_those_are_split_as_before(merging, tmp_path):
    got = []

    def run():
        ChangeFeedProcessor(
            open_feed(url_of(merging)),
            name="notify",
            start="beginning",
            store=open_store(f"sqlite:///{tmp_path}/leases.db"),
            on_changes=lambda changes: got.extend(
                (change.partition, change.document["id"]) for change in changes
            ),
            poll_interval_s=0.05,
            balance_interval_s=0.2,
        ).run(until_drained=True)

    for n, shown in enumerate((HALVES, MERGED, SPLIT_AS_BEFORE)):
        merging.shown = shown
        write(merging, n * 40, n * 40 + 40)
        run()
    assert sorted(id for _, id in got) == sorted(str(n) for n in range(120))
    assert {partition for partition, _ in got[-40:]} == {"4", "5"}


def test_a_lease_whose_keys_no_range_has_alone_any_more_is_refused_not_guessed_at(merging):
    write(merging, 0, 40)
    feed = open_feed(url_of(merging))
    at = asyncio.run(feed.locate("1", "earliest"))
    merging.shown = SPLIT_ELSEWHERE
    with pytest.raises(BadInput, match=r"range 1 was merged .* start over: leasehold rewind"):
        asyncio.run(feed.read("1", at, 10))
    feed.close()


def test_a_stream_does_not_take_one_merged_range_s_position_for_the_other_s(merging):
    """What the one that is behind has not read would be lost."""
    feed = open_feed(url_of(merging))
    write(merging, 0, 40)

    async def work():
        begin = await initial(feed, {"*": Earliest()}, "fail")
        ends = {each.partition: each.end for each in await feed.extents()}
        behind = replace(begin, next={"1": begin.next["1"], "2": ends["2"]}, begin={})
        merging.shown = MERGED
        with pytest.raises(BadInput, match=r"1, 2 were merged into 3 .* 'onPositionGone'"):
            await advance(feed, behind)
        end = await advance(feed, behind, on_position_gone="earliest")
        ranges = await still_there(feed, behind, end, "earliest")
        same = replace(behind, next=dict.fromkeys("12", ends["2"]))
        write(merging, 40, 50)
        later = (await advance(feed, same)).ranges_after(same)
        return ranges, later

    found, later = (
        [change.document["id"] for chunk in feed.read_columns(each) for change in chunk.changes]
        for each in asyncio.run(work())
    )
    unread = {str(n) for n in range(40) if effective_key(f"k{n}") < MIDDLE}
    assert unread <= set(found)
    assert len(found) == len(set(found))
    assert sorted(later) == [str(n) for n in range(40, 50)]
    feed.close()


@pytest.mark.parametrize("shown", [MERGED, SPLIT_AS_BEFORE, SPLIT_ELSEWHERE])
def test_a_task_planned_before_a_merge_gives_no_changes_of_other_keys(merging, shown):
    write(merging, 0, 40)
    feed = open_feed(url_of(merging))
    at = asyncio.run(feed.locate("1", "earliest"))
    own = asyncio.run(feed.read("1", at, 100)).events
    wanted = Range(partition="1", first=0, end=own[-1].lsn + 1)
    assert 0 < len(own) < 40
    assert sum(len(chunk) for chunk in feed.read_columns([wanted])) == len(own)
    merging.shown = shown
    with pytest.raises(BadInput, match="range 1 was merged with others into"):
        list(feed.read_columns([wanted]))
    merging.shown = {"8": ("", "FF", ["7"])}
    with pytest.raises(BadInput, match="range '1' is unknown"):
        list(feed.read_columns([wanted]))
    feed.close()
