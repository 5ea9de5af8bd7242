from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput
from leasehold.ports import LeaseStore
from leasehold.stores import open_store
from leasehold.stores.azure_blob import AzureBlobStore
from leasehold.stores.memory import MemoryStore
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing.check_lease_store import any_group


def test_a_memory_store_is_private_without_a_name_and_shared_by_name() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert open_store("memory://") is not open_store("memory://")
    assert open_store("memory://demo") is open_store("memory://demo")
    assert open_store("memory://demo") is not open_store("memory://other")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///leases.db", "leases.db"),
        ("sqlite:///data/my%20leases.db", "data/my leases.db"),
        ("sqlite:///a#b.db?timeout_s=2", "a#b.db"),
        ("SQLite:///leases.db", "leases.db"),
    ],
)
def test_three_slashes_begin_a_relative_path(
    url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / path


def test_four_slashes_begin_an_absolute_path(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/leases.db")
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "leases.db"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_schemes_of_libpq_are_postgresql(scheme: str) -> None:
    assert isinstance(open_store(f"{scheme}://me@localhost/db"), PostgresStore)


def test_azure_blob_is_opened_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm90IGEga2V5")
    store = open_store("azure-blob://account/leases?prefix=homes", timeout_s=7.0)
    assert isinstance(store, AzureBlobStore)
    asyncio.run(store.close())


@pytest.mark.parametrize("url", ["sqlite:///{}/data/leases.db", "postgresql://me@127.0.0.1:1/db"])
def test_nothing_is_made_or_connected_to_before_first_use(url: str, tmp_path: Path) -> None:
    store = open_store(url.format(tmp_path))
    assert isinstance(store, LeaseStore)
    assert store.requests.total() == 0
    assert list(tmp_path.iterdir()) == []


def test_settings_go_to_the_store(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="timeout_s"):
        open_store(f"sqlite:///{tmp_path}/leases.db", timeout_s=-1)
    with pytest.raises(BadInput, match="timeout_s"):
        open_store(f"sqlite:///{tmp_path}/leases.db?timeout_s=soon")
    with pytest.raises(BadInput, match=r"'speed'.*timeout_s"):
        open_store(f"sqlite:///{tmp_path}/leases.db?speed=high")
    with pytest.raises(BadInput, match="schema"):
        open_store("postgresql://localhost/db", schema="a b")


@pytest.mark.parametrize("url", ["redis://localhost", "sqlit:///leases.db", "://", "http://a/b"])
def test_an_unknown_scheme_is_answered_with_an_example_of_each_valid_one(url: str) -> None:
    with pytest.raises(BadInput) as refused:
        open_store(url)
    for example in ("memory://", "sqlite:///", "postgresql://user@host", "azure-blob://"):
        assert example in str(refused.value)


@pytest.mark.parametrize("path", ["leases.db", "data/leases.db", "/var/lib/leases.db"])
def test_a_plain_path_is_answered_with_its_url(path: str) -> None:
    with pytest.raises(BadInput, match=f"sqlite:///{path}"):
        open_store(path)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite://", "sqlite:///data/leases.db"),
        ("sqlite:///", "sqlite:///data/leases.db"),
        ("sqlite://data/leases.db", "sqlite:///data/leases.db"),
        ("sqlite:///:memory:", "memory://"),
    ],
)
def test_a_sqlite_url_without_its_path_is_answered_with_the_right_one(url: str, hint: str) -> None:
    with pytest.raises(BadInput, match=hint):
        open_store(url)


def test_a_password_is_not_shown_when_the_url_is_no_url_at_all() -> None:
    with pytest.raises(BadInput) as refused:
        open_store("postgresql:me:open-sesame@host/db")
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("psycopg", "postgres", "open_store('postgresql://me@host/db')"),
        ("psycopg", "postgres", "import leasehold.stores.postgres"),
        ("azure", "azure", "open_store('azure-blob://account/leases')"),
    ],
)
def test_without_its_package_a_store_names_the_extra_and_others_work(
    package: str, extra: str, use: str
) -> None:
    script = f"""
import sys
sys.modules["{package}"] = None
from leasehold.errors import MissingExtra
from leasehold.stores import open_store
open_store("memory://"), open_store("sqlite:///leases.db")
try:
    {use}
except MissingExtra as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert f"pip install 'leasehold[{extra}]'" in ended.stdout, ended.stderr


def test_a_store_opened_by_url_keeps_leases(tmp_path: Path) -> None:
    async def scene(url: str) -> int:
        group, store = any_group(), open_store(url)
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        leases = (await store.snapshot(group)).leases
        await store.close()
        return len(leases)

    for url in ("memory://", f"sqlite:///{tmp_path}/leases.db"):
        assert asyncio.run(scene(url)) == 1
