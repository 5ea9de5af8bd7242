"""What the application needs of the machine, looked at before anything starts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from dataclasses import asdict
from pathlib import Path

from homes.local.urls import Urls
from leasehold import BadInput

JAVA_OLDEST = 17
EXTRAS = {
    "kafka": ("confluent_kafka", "kafka"),
    "eventhubs": ("azure.eventhub", "eventhubs"),
    "cosmos": ("azure.cosmos", "cosmos"),
    "postgresql": ("psycopg", "postgres"),
    "azure-blob": ("azure.storage.blob", "azure"),
}
"""By scheme of a URL: the module that it takes, and the extra that brings it."""
MASTER_S = 5.0


def require_java() -> None:
    """Spark would fail with a stack trace, in a log that nobody has seen yet."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = f"install Java {JAVA_OLDEST} or newer (Debian: apt install openjdk-17-jre-headless)"
    if program is None:
        raise BadInput(f"Spark needs Java, and there is none on the PATH: {remedy}")
    try:
        printed = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=60
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        where = f"JAVA_HOME is {home}, but " if home else ""
        raise BadInput(f"{where}{program} does not run ({error}): {remedy}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    if found is None or int(found[1]) < JAVA_OLDEST:
        version = f"Java {found[1]}" if found else "no Java that tells its version"
        raise BadInput(
            f"{program} is {version}; Spark needs {JAVA_OLDEST} or newer: let JAVA_HOME name one, "
            f"or {remedy}"
        )


def require_parts(urls: Urls) -> None:
    """What is beyond the folder can be used, as far as that is told quickly."""
    require_extras(urls)
    require_master(urls.spark)


def require_extras(urls: Urls) -> None:
    """A part that lacks one would fail and be started again, with the reason in its log only."""
    for option, url in asdict(urls).items():
        module, extra = EXTRAS.get(url.partition("://")[0], ("", ""))
        if module and not _is_installed(module):
            raise BadInput(
                f"--{option.replace('_', '-')} {url} needs {module}, which is not installed: "
                f"pip install 'leasehold-homes[{extra}]'"
            )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def require_master(url: str) -> None:
    """Spark would try for a minute, fail, and be started again. Empty: there is none to reach."""
    if not url.startswith("spark://"):
        return
    why = "give spark://HOST:PORT"
    for address in url.removeprefix("spark://").split(","):  # several: one of them leads
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), MASTER_S).close()
        except (OSError, ValueError, OverflowError) as error:
            why = str(error)
        else:
            return
    raise BadInput(f"no Spark master answers at {url} ({why}): is it running, and is this its URL?")


def require_port(port: int, host: str = "127.0.0.1") -> None:
    """0 is any that is free."""
    with socket.socket() as probe:
        # As the server will: an address that a former run has only just left is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInput(
                f"port {port} cannot be used ({error.strerror}): choose another with --port, or "
                "--port 0 for any that is free"
            ) from error
