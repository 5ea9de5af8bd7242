import pytest
from typer.testing import CliRunner

from leasehold.cli import app
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(
    "feed",
    [
        (Hub, {"partitions": 1}, ["hub", "send", "one"]),
        (Container, {"partition_key": "/key"}, ["container", "put", '{"id": "a", "key": "k"}']),
    ],
    ids=["hub", "container"],
)
def test_who_writes_may_ask_to_wait_for_the_disk(tmp_path, monkeypatch, feed, wanted):
    kind, settings, words = feed
    path = tmp_path / "feed.db"
    kind.create(path, name="f", namespace="n", **settings).close()
    opened = []
    real = kind.open

    def spy(path, *, fsync=False):
        opened.append(fsync)
        return real(path, fsync=fsync)

    monkeypatch.setattr(kind, "open", spy)
    command = [*words[:2], str(path), words[2], *["--fsync"] * wanted]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, opened) == (0, [wanted]), done.output
