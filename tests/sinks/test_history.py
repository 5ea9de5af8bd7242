"""What a table keeps of a position is enough to tell that the feed has lost it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.blocking import result_of
from support.feed_files import ContainerFile, HubFile, copy, restore

from leasehold.core.model import Checkpoint
from leasehold.feeds.container import Container
from leasehold.sinks import UNKNOWN, History


def history_of(feed: Any) -> History:
    return History(feed.feed() if isinstance(feed, Container) else feed)


@pytest.mark.parametrize("kind", [HubFile, ContainerFile])
def test_a_position_is_lost_only_where_other_events_took_its_place(
    tmp_path: Path, kind: type[HubFile]
) -> None:
    file, saved = kind(tmp_path), tmp_path / "saved.db"
    with file.create() as feed:
        file.send(feed, "abcde")
        copy(file.path, saved)
        file.send(feed, "fghij")
    with file.open() as feed:  # another writer, so that numbers differ within the feed
        file.send(feed, "klmno")
        history = history_of(feed)
        known = {at: (at, history.numbers({"0": at})["0"]) for at in (2, 5, 7, 10, 13, 15)}
        assert UNKNOWN not in {number for _, number in known.values()}
        file.send(feed, "p")
        assert [history.lost({"0": each}) for each in known.values()] == [{}] * len(known)
        assert history.lost({}) == {}
    restore(saved, file.path)
    with file.open() as feed:
        file.send(feed, "0123456789abcdef")
        history = history_of(feed)
        lost = {at for at, each in known.items() if history.lost({"0": each})}
        assert lost == {at for at in known if at > first_new(kind)}


def first_new(kind: type[HubFile]) -> int:
    """LSNs begin at 1, so that position 5 is before the last of five changes."""
    return 6 if kind is ContainerFile else 5


@pytest.mark.parametrize("kind", [HubFile, ContainerFile])
@pytest.mark.parametrize("token", ["", "0", "feed-12", "no number"])
def test_a_token_that_does_not_tell_is_unknown(
    tmp_path: Path, kind: type[HubFile], token: str
) -> None:
    with kind(tmp_path).create() as feed:
        assert history_of(feed).number_at(Checkpoint(next_sequence=1, token=token)) == UNKNOWN


def test_what_retention_removed_is_not_lost(tmp_path: Path) -> None:
    file = HubFile(tmp_path)
    with file.create() as feed:
        file.send(feed, "abcde")
        history = History(feed)
        known = {"0": (3, history.numbers({"0": 3})["0"])}
        file.send(feed, "fghij")
        feed.trim_before(0, 5)
        assert result_of(feed.extents())[0].first > 3
        assert history.lost(known) == {}
