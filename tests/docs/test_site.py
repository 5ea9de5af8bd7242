"""The documentation builds as a site, with search, and a link that leads nowhere fails it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import site_pages

ROOT = Path(__file__).parents[2]


def test_the_site_has_every_page_and_a_search_and_fetches_nothing(tmp_path: Path) -> None:
    site = site_pages.build(tmp_path)
    wanted = list((tmp_path / "pages").rglob("*.md"))
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert len(wanted) > 35
    assert len(built) == len(wanted) + 1  # and one for what is not found
    index = json.loads((site / "search/search_index.json").read_text())["docs"]
    found = {
        entry["location"].partition("#")[0] for entry in index if "try_handler" in entry["text"]
    }
    assert {"docs/reference/api.html", "docs/how-to/test-your-handler.html"} <= found
    for page in built:
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", (site / page).read_text())
        outside = [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag)]
        assert outside == []


def test_a_link_that_leads_nowhere_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = site_pages.gather

    def broken(into: Path) -> None:
        gather(into)
        page = into / "docs/tutorial.md"
        page.write_text(page.read_text() + "\n[nowhere](how-to/nowhere.md) [no](#no-such-place)\n")

    monkeypatch.setattr(site_pages, "gather", broken)
    with pytest.raises(site_pages.BrokenSite) as told:
        site_pages.build(tmp_path)
    assert "how-to/nowhere.md" in str(told.value)
    assert "no-such-place" in str(told.value)
