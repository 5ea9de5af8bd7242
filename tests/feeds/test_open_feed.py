import sqlite3

import pytest
from support.blocking import result_of

import leasehold as lh
from leasehold.feeds.container.change_feed import ChangeFeed


@pytest.fixture
def hub(tmp_path):
    lh.Hub.create(tmp_path / "a.db", name="sensors", namespace="homes.local", partitions=1).close()
    return tmp_path / "a.db"


def make_container(folder, **settings):
    path = folder / "b.db"
    lh.Container.create(
        path, name="alerts", namespace="homes.local", partition_key="/home", **settings
    ).close()
    return path


def refusal(*arguments, **settings):
    with pytest.raises(lh.BadInput) as refused:
        lh.open_feed(*arguments, **settings)
    return str(refused.value)


def test_a_file_says_itself_what_it_is(hub, tmp_path):
    opened = lh.open_feed(str(hub))
    assert isinstance(opened, lh.Hub)
    opened.close()
    for mode, name in ((None, "alerts"), ("latest", "alerts"), ("all", "alerts.all")):
        path = tmp_path / "b.db"
        feed = lh.open_feed(path if path.exists() else make_container(tmp_path), mode)
        assert isinstance(feed, ChangeFeed)
        assert (feed.namespace, feed.name) == ("homes.local", name)
        feed.close()
        with pytest.raises(lh.BadInput, match="was closed"):
            result_of(feed.partitions())


@pytest.mark.parametrize("content", [b"", b"text", b"SQLite format 3\0", None])
def test_any_other_file_is_refused(tmp_path, content):
    path = tmp_path / "c.db"
    if content is None:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE t (a)")
        db.close()
    else:
        path.write_bytes(content)
    assert "is neither a hub nor a container" in refusal(path)


def test_a_file_that_is_not_there_or_no_file_is_refused_and_not_made(tmp_path):
    assert "there is no hub and no container at" in refusal(tmp_path / "no.db")
    assert not list(tmp_path.iterdir())
    assert "cannot be used as a feed" in refusal(tmp_path)


def test_a_mode_must_be_one_and_is_for_containers_that_have_it(hub, tmp_path):
    assert "is a hub, which has no modes" in refusal(hub, "latest")
    path = make_container(tmp_path, versions_s=0)
    assert "keeps no versions" in refusal(path, "all")
    assert "read as one of latest, all" in refusal(path, mode="newest")
