"""Where the parts of the application are, beyond its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.cli.url_options import urls_of
from homes.local.places import Places
from homes.local.urls import Urls
from homes.supervisor.part_config import VARIABLE, PartConfig
from leasehold import BadInput


def test_without_urls_everything_is_in_the_folder(tmp_path: Path) -> None:
    places = Places(tmp_path)
    inside = (places.feed, places.table, places.archived, places.store, places.dead_letters)
    assert all(str(tmp_path) in each for each in inside)
    assert places.urls.spark == ""


def test_a_file_names_them_and_options_count_for_more(tmp_path: Path) -> None:
    file = tmp_path / "homes.toml"
    file.write_text('feed = "kafka://b:9092/readings"\nstore = "postgresql://h/leases"\n')
    urls = urls_of(file, store="sqlite:///other.db", table=None, spark="spark://h:7077")
    assert urls == Urls(
        feed="kafka://b:9092/readings", store="sqlite:///other.db", spark="spark://h:7077"
    )
    assert Places(tmp_path, urls).feed == "kafka://b:9092/readings"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('hub = "x"', "hub is unknown; valid are feed, store, dead_letters, alerts, table"),
        ("feed = 7", "feed is 7; give a URL as text"),
        ("feed =", "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_would_be_right(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "homes.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=said):
        urls_of(file)


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no file .*it holds lines such as feed ="):
        urls_of(tmp_path / "none.toml")


def test_parts_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PartConfig(part="p", folder="f", instance="i", homes=1, urls=Urls(feed="kafka://b/t"))
    monkeypatch.setenv(VARIABLE, config.environ()[VARIABLE])
    assert PartConfig.from_environ() == config
