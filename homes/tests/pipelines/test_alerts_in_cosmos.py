"""The alert container in Cosmos DB: who writes to it, both units of its change feed, the page."""

import asyncio
import json

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from support.processing import FAST, open_leases

import leasehold as lh
from homes.pipelines.alerts import alerts_processor
from homes.pipelines.archive import archive_unit, read_archive
from homes.web.alerts import RecentAlerts


@pytest.fixture
def container(cosmos):
    with CosmosClient(cosmos.url, cosmos.key) as client:
        database = client.get_database_client("homes")
        database.create_container("alerts", PartitionKey("/home_id"), offer_throughput=12_000)
        opened = lh.open_container(cosmos.url_of("alerts"))
        yield opened
        opened.close()
        database.delete_container("alerts")


def glass(home, ts):
    reading = {"home_id": home, "sensor_id": f"{home}-g", "type": "glass", "value": 1.0}
    return json.dumps(reading | {"battery": 90, "ts": ts}).encode()


def test_alerts_are_kept_moved_on_and_shown(cosmos, container, tmp_path):
    hub = lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="t", partitions=2)
    homes = [f"H{n:06d}" for n in range(1, 9)]
    for ts in (1, 2, 2):  # the last one comes twice and changes nothing
        hub.send_columns(homes, [glass(home, ts) for home in homes])
    hub.send_columns(["H000001"], [b'{"home_id": 7}'])
    letters = lh.open_dead_letters(cosmos.url_of("dead"))
    store = open_leases(tmp_path)
    alerts_processor(hub, store, container, dead_letters=letters, **FAST).run(until_drained=True)
    expected = sorted(f"{home}-g-{ts}" for home in homes for ts in (1, 2))
    archive_unit(container, open_leases(tmp_path), str(tmp_path / "archive"), **FAST).run(
        until_drained=True
    )
    assert sorted(alert["id"] for alert in read_archive(str(tmp_path / "archive"))) == expected

    async def look():
        page = RecentAlerts(container)
        shown = {home: await page.of(home) for home in (*homes, "H000099")}
        cosmos.container("homes", "alerts").split("0")
        hub.send_columns(homes, [glass(home, 3) for home in homes])
        processor = alerts_processor(
            hub, open_leases(tmp_path), container, dead_letters=letters, **FAST
        )
        await processor.run_async(until_drained=True)
        page._looked_at = -1.0
        after = {home: await page.of(home) for home in homes}
        assert not page.failing
        (letter,) = await letters.list(lh.LetterFilter())
        await letters.close()
        return shown, after, letter

    shown, after, letter = asyncio.run(look())
    assert {home: len(alerts) for home, alerts in shown.items()} == {
        **dict.fromkeys(homes, 2),
        "H000099": 0,
    }
    assert all([each["ts_ms"] for each in alerts] == [3, 2, 1] for alerts in after.values())
    assert letter.group.name == "alerts"
    hub.close()


def test_a_container_in_cosmos_db_says_what_is_wrong(cosmos, container):
    container.insert({"id": "a", "home_id": "H1"})
    with pytest.raises(lh.DocumentConflict, match="is there already"):
        container.insert({"id": "a", "home_id": "H1"})
    with pytest.raises(lh.BadInput):
        container.insert({"id": "b", "home_id": "H1", "text": "x" * 3_000_000})
    with pytest.raises(lh.BadInput, match="no container at"):
        lh.open_container(cosmos.url_of("nothing")).properties()
    with pytest.raises(lh.FeedUnavailable, match="does not answer"):
        lh.open_container("cosmos://localhost:1/homes/alerts").properties()
    with pytest.raises(lh.BadInput, match="none of this container"):
        container.changes("0", "elsewhere")
