"""What the application keeps is for its own user alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from leasehold import BadInput

OTHERS = 0o077


def keep_private() -> None:
    """For whole programs: whatever this process and its children make, others cannot read. That
    includes what SQLite, Spark and Delta make, which take no mode."""
    os.umask(OTHERS)


def private_folder(path: Path, on_news: Callable[[str], None] = lambda text: None) -> None:
    """Made, if it is not there. One that others can read is closed to them, with all that is in it:
    it also holds lock files, which anybody who can read them could hold. ``on_news`` hears so."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.stat().st_mode & OTHERS:
            return
        path.chmod(0o700)
    except OSError as error:
        raise BadInput(
            f"nothing can be kept in {path}: {error.strerror}; choose a folder that belongs to you"
        ) from error
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            _close(Path(folder, name))
    on_news(f"{path} could be read by others; now only you can (chmod 700)")


def _close(path: Path) -> None:
    with suppress(OSError):  # it may be gone by now, and nobody else comes as far as here
        mode = path.lstat().st_mode
        if mode & OTHERS and not path.is_symlink():
            path.chmod(mode & 0o7700)
