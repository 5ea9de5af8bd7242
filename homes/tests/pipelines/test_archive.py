import asyncio
import os
import signal
import subprocess
import sys

import pytest
from support.processing import FAST, open_leases, running, until, wait_until

import leasehold as lh
from homes.pipelines.archive import archive_unit, read_archive
from homes.pipelines.blobs import Folder, open_blobs

QUICK = lh.Retry(attempts=5, backoff_s=0.01, backoff_max_s=0.05)


@pytest.fixture
def container(tmp_path):
    with make_container(tmp_path) as container:
        yield container


def make_container(folder):
    return lh.Container.create(
        folder / "alerts.db", name="alerts", namespace="homes", partition_key="/home_id", ranges=2
    )


def raise_alerts(container, count, first=0):
    alerts = [{"id": f"a{n}", "home_id": f"H{n:06d}"} for n in range(first, first + count)]
    container.upsert_many(alerts)
    return {alert["id"] for alert in alerts}


def unit(container, folder, url, **settings):
    return archive_unit(
        container, open_leases(folder), str(url), **(FAST | {"retry": QUICK} | settings)
    )


def ids_in(url):
    return sorted(alert["id"] for alert in read_archive(str(url)))


def test_every_alert_is_in_the_archive_once(container, tmp_path):
    url = tmp_path / "archive"
    ids = raise_alerts(container, 250)
    unit(container, tmp_path, url, max_items=30).run(until_drained=True)
    ids |= raise_alerts(container, 50, first=250)
    unit(container, tmp_path, url, max_items=30).run(until_drained=True)
    assert ids_in(url) == sorted(ids)
    lines = sum(len(path.read_bytes().splitlines()) for path in url.rglob("*.jsonl"))
    assert lines == 300


def test_a_batch_that_comes_again_overwrites_itself(container, tmp_path, monkeypatch):
    """The object is written, and then the instance does not hear of it."""
    url = tmp_path / "archive"
    ids = raise_alerts(container, 100)
    put, failures = Folder.put, iter(range(4))

    def unheard(self, name, data):
        put(self, name, data)
        if next(failures, None) is not None:
            raise lh.StoreUnavailable("the answer was lost")

    monkeypatch.setattr(Folder, "put", unheard)
    unit(container, tmp_path, url, max_items=20).run(until_drained=True)
    names = list(open_blobs(str(url)).names())
    assert len(names) == len(set(names)) <= 8
    lines = [line for path in url.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert len(lines) == 100
    assert ids_in(url) == sorted(ids)


def test_a_changed_alert_is_archived_again_and_read_in_its_newest_state(container, tmp_path):
    url = tmp_path / "archive"
    raise_alerts(container, 5)
    unit(container, tmp_path, url).run(until_drained=True)
    container.patch("a3", "H000003", {"status": "seen"})
    unit(container, tmp_path, url).run(until_drained=True)
    found = {alert["id"]: alert.get("status") for alert in read_archive(str(url))}
    assert found == {"a0": None, "a1": None, "a2": None, "a3": "seen", "a4": None}


def test_a_container_made_anew_does_not_overwrite_the_archive_of_its_former_self(tmp_path):
    url = tmp_path / "archive"
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        with make_container(folder) as container:
            raise_alerts(container, 10)
            unit(container, folder, url).run(until_drained=True)
    assert len(read_archive(str(url))) == 20


def test_storage_in_trouble_delays_the_archive_and_loses_nothing(container, tmp_path):
    url = tmp_path / "archive"
    ids = raise_alerts(container, 40)
    errors = []
    processor = unit(container, tmp_path, url, retry=lh.Retry(attempts=2), on_error=errors.append)
    url.mkdir()
    blocked = url / f"alerts-{container.identity[:8]}"
    blocked.write_text("a file where the folder belongs")

    async def main():
        async with running(processor):
            # Two ranges, and each is tried more often than attempts says: for ever.
            await until(lambda: len(errors) >= 6)
            blocked.unlink()
            await until(lambda: ids_in(url) == sorted(ids))

    asyncio.run(main())


def test_alerts_are_archived_in_azure_blob_storage(container, tmp_path, azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    url = f"azure-blob://{azurite.account}/alert-archive?prefix=homes/{container.identity[:6]}"
    ids = raise_alerts(container, 120)
    unit(container, tmp_path, url, max_items=25).run(until_drained=True)
    assert ids_in(url) == sorted(ids)
    names = list(open_blobs(url).names())
    assert len(names) >= 5
    assert all(name.startswith(f"alerts-{container.identity[:8]}/") for name in names)
    open_blobs(url).put(names[0], b"")
    assert open_blobs(url).get(names[0]) == b""


def test_azure_that_does_not_answer_is_said_to_be_unavailable(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    blobs = open_blobs("azure-blob://account/archive?endpoint=http://127.0.0.1:9/account")
    with pytest.raises(lh.StoreUnavailable, match=r"storage account account.* does not answer"):
        blobs.put("a", b"")


def test_a_wrong_secret_is_said(azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    blobs = open_blobs(f"azure-blob://{azurite.account}/archive?endpoint={azurite.url}")
    with pytest.raises(lh.StoreUnavailable, match=r"answered 403.*secret") as refusal:
        blobs.put("a", b"")
    assert "c2VjcmV0" not in str(refusal.value)


def test_storage_that_is_not_known_and_a_file_in_place_of_a_folder_are_refused(tmp_path):
    with pytest.raises(lh.BadInput, match="s3://"):
        open_blobs("s3://bucket")
    (tmp_path / "file").write_text("")
    with pytest.raises(lh.BadInput, match="is no folder"):
        open_blobs(str(tmp_path / "file"))
    assert open_blobs(f"file://{tmp_path}/a%20b").path == tmp_path / "a b"


WORKER = """
import sys
import leasehold as lh
from homes.pipelines.archive import archive_unit
folder = sys.argv[1]
archive_unit(
    lh.Container.open(f"{folder}/alerts.db"),
    lh.open_store(f"sqlite:///{folder}/leases.db"),
    f"{folder}/archive",
    lease_ttl_s=1, balance_interval_s=0.2, max_items=5, instance="a",
).run(until_drained=True)
"""


def test_killed_and_restarted_everything_is_archived(container, tmp_path):
    ids = raise_alerts(container, 1000)
    folder = tmp_path / "archive"

    def objects():
        return len(list(folder.rglob("*.jsonl")))

    for _ in range(3):
        before = objects()
        process = subprocess.Popen([sys.executable, "-c", WORKER, tmp_path])
        wait_until(lambda old=before: objects() > old)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", WORKER, tmp_path], check=True, timeout=120)
    assert ids_in(folder) == sorted(ids)
    lines = sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.jsonl"))
    assert lines == 1000
