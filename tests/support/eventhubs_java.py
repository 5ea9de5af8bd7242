"""Programs with Azure's Java client for Event Hubs. A runtime will do: the compiler is a jar."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.servers import TOOLS, Command

JARS = TOOLS / "jars" / "eventhubs-java"


def compiled(source: Path, folder: Path) -> Path:
    """The folder, with the program's classes in it."""
    assert JARS.exists(), f"{JARS} is missing: `make test` sets it up"
    (compiler,) = JARS.glob("ecj-*.jar")
    command: Command = [
        _java(),
        "-jar",
        compiler,
        "-17",
        "-cp",
        _class_path(),
        "-d",
        folder,
        source,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def command_of(classes: Path, program: str) -> list[str]:
    return [_java(), "-Xmx256m", "-cp", f"{classes}{os.pathsep}{_class_path()}", program]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _class_path() -> str:
    return os.pathsep.join(map(str, sorted(JARS.glob("*.jar"))))
