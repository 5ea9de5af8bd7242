"""Real servers for tests and measurements: a throw-away PostgreSQL cluster, and Azurite.

    with servers.postgres() as server: ...    # server.url, server.password
    with servers.azurite() as server: ...     # server.url, server.key, server.connection_string

    python tests/servers.py COMMAND ...       # with both; {postgres} stands for its URL

Each listens on a free loopback port, keeps its data in a temporary folder, and goes when the block
ends or when the process that started it dies, however it dies. A test can take it away for a while:
within ``with server.frozen():`` it gives no answers, within ``with server.down():`` no connections.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
START_BOUND_S = 60
STOP_BOUND_S = 20

Command = list[str | Path]
Outage = Callable[[], AbstractContextManager[None]]

FREEZE = """
while read pid; do kill -s STOP $pid; all="$all $pid"; echo; done
kill -s CONT $all
"""

# Published by Microsoft, the same in every emulator: no secret.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

# Nobody needs this data after a power cut, but all of it after a kill; many instances connect.
POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
}


class ServerFailed(Exception):
    """A server did not come up; the text ends with what it printed itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    url: str
    """Without the password: give that as PGPASSWORD in the environment."""
    password: str = field(repr=False)
    frozen: Outage
    down: Outage
    """Killed, and started again with its data on its port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Azurite:
    url: str
    """The account's blob endpoint."""
    frozen: Outage
    account: str = AZURITE_ACCOUNT
    key: str = field(default=AZURITE_KEY, repr=False)

    @property
    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account};"
            f"AccountKey={self.key};BlobEndpoint={self.url};"
        )


@contextmanager
def postgres() -> Iterator[Postgres]:
    user = _unprivileged_user()
    initdb, server = _tool("initdb").resolve(), _tool("postgres").resolve()
    with _folder(user) as folder:
        # A password of its own, so that nobody takes another cluster's answer for this one's.
        password = secrets.token_urlsafe(16)
        pwfile, data = folder / "password", folder / "data"
        pwfile.write_text(password)
        pwfile.chmod(0o644)
        command: Command = [initdb, "-D", data, "-U", "leasehold", f"--pwfile={pwfile}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        with _Program(command, folder, user, stop=signal.SIGQUIT) as made:
            _wait(made, lambda: made.process.poll() == 0)
        options = [word for name, value in POSTGRES_SETTINGS.items() for word in _set(name, value)]
        with reserved_port() as port:
            command = [server, "-D", data, "-p", str(port), *options]
            url = f"postgresql://leasehold@127.0.0.1:{port}/postgres"
            # Quit without a last checkpoint: the data is thrown away anyway.
            with _Program(command, folder, user, stop=signal.SIGQUIT) as started:
                answers = partial(_answers, url, password)
                _wait(started, answers)
                yield Postgres(
                    url=url,
                    password=password,
                    frozen=partial(_frozen, folder),
                    down=partial(_down, started, answers),
                )


@contextmanager
def azurite() -> Iterator[Azurite]:
    program = TOOLS / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    command: Command = [_tool("node"), program, "--blobHost", "127.0.0.1", "--blobPort", "0"]
    command += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AZURITE_")}
    with (
        _folder() as folder,
        _Program(command, folder, stop=signal.SIGTERM, env=env) as started,
    ):
        _wait(started, lambda: started.search(r"successfully listens on (\S+)") is not None)
        endpoint = started.search(r"successfully listens on (\S+)")
        yield Azurite(url=f"{endpoint}/{AZURITE_ACCOUNT}", frozen=partial(_frozen, folder))


class _Program:
    def __init__(
        self,
        command: Command,
        folder: Path,
        user: pwd.struct_passwd | None = None,
        *,
        stop: signal.Signals,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.log = folder / f"{Path(command[0]).name}.log"
        self._command, self._folder, self._user = command, folder, user
        self._stop = stop
        self._env = {"PATH": os.environ["PATH"], "LC_ALL": "C"} if env is None else env
        self.process = self._start()

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        _stop(self.process, self._stop)

    def start_again(self) -> None:
        self.process = self._start()

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def search(self, pattern: str) -> str | None:
        found = re.search(pattern, self.printed())
        return found[1] if found else None

    def _start(self) -> subprocess.Popen[bytes]:
        user = self._user
        try:
            with self.log.open("wb") as output:
                return subprocess.Popen(
                    self._command,
                    cwd=self._folder,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    user=user.pw_uid if user else None,
                    group=user.pw_gid if user else None,
                    extra_groups=[] if user else None,
                    # A Ctrl-C in the terminal is for the tests; they stop their servers in order.
                    start_new_session=True,
                    preexec_fn=_ends_with_parent(self._stop),  # noqa: PLW1509 - one call into libc
                )
        except PermissionError as error:
            who = user.pw_name if user else "this user"
            raise ServerFailed(
                f"{who} may not run {self._command[0]} in {self._folder}: move the checkout (or "
                "TMPDIR) to where everybody may read"
            ) from error


@contextmanager
def _down(
    program: _Program, answers: Callable[[], bool], bound_s: float = START_BOUND_S
) -> Iterator[None]:
    program.end()
    try:
        yield
    finally:
        program.start_again()
        _wait(program, answers, bound_s)


@contextmanager
def _frozen(folder: Path) -> Iterator[None]:
    """None of its processes runs. A shell lets them go on, also if this process dies meanwhile:
    else they would hear nothing of that."""
    with subprocess.Popen(
        ["sh", "-c", FREEZE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as shell:
        assert shell.stdin
        assert shell.stdout
        stopped: set[int] = set()
        # The first one that is stopped may have started more before.
        while new := [pid for pid in processes_within(folder) if pid not in stopped]:
            for pid in new:
                shell.stdin.write(b"%d\n" % pid)
                shell.stdin.flush()
                shell.stdout.readline()
            stopped.update(new)
        yield


def processes_within(folder: str | Path) -> list[int]:
    """The processes whose working directory lies in the folder, as every server's does."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:  # it ended meanwhile
            continue
    return sorted(found)


def _ends_with_parent(stop: signal.Signals) -> Callable[[], None] | None:
    """A child's first act: ask the kernel for the stop signal on its parent's death."""
    if sys.platform != "linux":
        return None
    prctl, set_parent_death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(set_parent_death_signal, int(stop))


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(started: _Program, ready: Callable[[], bool], bound_s: float = START_BOUND_S) -> None:
    deadline = time.monotonic() + bound_s
    while True:
        code = started.process.poll()
        if ready():
            return
        if code is not None or time.monotonic() > deadline:
            why = "was not ready in time" if code is None else f"ended with {code}"
            raise ServerFailed(f"{started.log.stem} {why}. It printed:\n{started.printed()}")
        time.sleep(0.05)


def _answers(url: str, password: str) -> bool:
    try:
        psycopg.connect(url, password=password, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _set(name: str, value: str) -> tuple[str, str]:
    return "-c", f"{name}={value}"


def _tool(name: str) -> Path:
    path = TOOLS / "bin" / name
    if not path.exists():
        raise ServerFailed(f"{path} is missing: `make test` sets it up")
    return path


def _unprivileged_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; whom to run it as instead."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


@contextmanager
def _folder(user: pwd.struct_passwd | None = None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="leasehold-"))
    try:
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A loopback port for servers of this block alone: nobody else is given it meanwhile, not even
    while none of them listens. They set SO_REUSEADDR, as servers do."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])


def main(command: list[str]) -> int:
    """Run a command with both servers up, and their secrets in its environment."""
    with postgres() as database, azurite() as blobs:
        secrets_of_both = {
            "PGPASSWORD": database.password,
            "AZURE_STORAGE_CONNECTION_STRING": blobs.connection_string,
        }
        words = [word.replace("{postgres}", database.url) for word in command]
        return subprocess.run(words, env={**os.environ, **secrets_of_both}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
