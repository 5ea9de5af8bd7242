"""Azure's Java change feed processor with its monitored and its lease container on the endpoint."""

import time
from contextlib import ExitStack

import pytest
from azure.cosmos import PartitionKey

from benchmarks.cosmos_java import JavaHost
from leasehold import ChangeFeedProcessor, open_feed, open_store

pytestmark = [pytest.mark.servers, pytest.mark.takes_s(45)]


def until(true, seconds=120.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.parametrize("kind", ["plain", "wrapped"])
def test_two_hosts_deliver_everything_through_a_split_and_a_kill(
    served, database, kind, tmp_path, monkeypatch
):
    """``plain`` and ``wrapped`` differ in their lease documents and in how changes are asked for.
    Java's processor delivers at least once: on a busy machine a lease may move, and come again.
    When its hosts are gone, ours goes on where they stood."""
    key = PartitionKey("/home_id")
    feed = database.create_container(f"java-{kind}", key, offer_throughput=12_000)
    database.create_container(f"java-leases-{kind}", PartitionKey("/id"))
    sent = []

    def send(count):
        for _ in range(count):
            sent.append(f"c{len(sent):03}")
            feed.create_item({"id": sent[-1], "home_id": f"H{len(sent) % 17}"})

    def got():
        return {*first.ids, *second.ids}

    with ExitStack() as stack:
        first = JavaHost(served, "first", kind, feed.id, f"java-leases-{kind}")
        stack.callback(first.process.kill)
        second = JavaHost(served, "second", kind, feed.id, f"java-leases-{kind}")
        stack.callback(second.process.kill)
        until(lambda: first.started and second.started)
        send(60)
        until(lambda: got() == set(sent))
        inner = served.container("homes", feed.id)
        inner.split("0")
        send(60)
        until(lambda: got() == set(sent))
        until(lambda: send(1) or (first.ids and second.ids))  # leases are shared by and by
        first.kill()
        killed = len(sent)
        send(60)
        until(lambda: got() == set(sent))
        second.stop()
        assert second.lines[-1] == "stopped"
    before = len(sent)
    send(30)
    inner.split(inner.leaves()[0])  # theirs know nothing of this one
    monkeypatch.setenv("AZURE_COSMOS_KEY", served.key)
    lease_container = database.get_container_client(f"java-leases-{kind}")
    written = sorted(map(str, lease_container.read_all_items()))
    ours = taken_over(served.url_of(feed.id), served.url_of(lease_container.id), tmp_path)
    assert set(ours) >= set(sent[before:])
    assert len(ours) == len(set(ours))
    # The last batch may come again, and may be all that was sent since the kill.
    assert set(ours) <= set(sent[killed:])
    assert sorted(map(str, lease_container.read_all_items())) == written


def taken_over(url, leases, folder):
    """The ids that our processor is told of, beginning where Azure's stood."""
    got = []
    feed = open_feed(url)
    ChangeFeedProcessor(
        feed,
        name="after-java",
        start=f"leases:{leases}",
        store=open_store(f"sqlite:///{folder}/leases.db"),
        on_changes=lambda changes: got.extend(change.document["id"] for change in changes),
    ).run(until_drained=True)
    feed.close()
    return got
