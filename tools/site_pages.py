"""The documentation as a site: ``make docs`` builds it in ``build/site``.

The pages stay where they are in the repository; a copy of them in the same places is what MkDocs
reads, so links work there as they do in the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs", "homes/README.md",
         "homes/docs", "benchmarks/README.md")  # fmt: skip


class BrokenSite(Exception):
    """What is wrong with the pages."""


def gather(into: Path) -> None:
    """A copy of all pages and pictures."""
    shutil.rmtree(into, ignore_errors=True)
    for name in PAGES:
        source, target = ROOT / name, into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)


def build(folder: Path) -> Path:
    """The site in ``folder/site``. A link that leads nowhere, or a page that nothing leads to, is
    an error."""
    pages, site = folder / "pages", folder / "site"
    gather(pages)
    config = folder / "mkdocs.yml"
    config.write_text((ROOT / "tools/mkdocs.yml").read_text())
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    done = subprocess.run(  # not with --quiet, which would make --strict count nothing
        [*command, "--config-file", str(config), "--site-dir", str(site)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BrokenSite(done.stdout + done.stderr)
    return site


if __name__ == "__main__":
    try:
        print(f"open {build(ROOT / 'build')}/index.html")
    except BrokenSite as error:
        sys.exit(str(error))
