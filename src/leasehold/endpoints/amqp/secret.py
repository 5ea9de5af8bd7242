"""The key that clients sign their tokens with: made at random at first start, kept beside the hub.

The file holds a whole connection string, so that a client can be given what the file says.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.errors import BadInput

POLICY = "RootManageSharedAccessKey"
_KEY = re.compile(r"SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    policy: str = POLICY
    key: str = field(repr=False)

    def connection_string(self, hub: str, host: str, port: int, *, tls: bool) -> str:
        """What official clients take. Only to a development emulator do they speak without TLS, and
        only there do they heed the port."""
        where = f"sb://{host}/" if tls else f"sb://{host}:{port}"
        return (
            f"Endpoint={where};SharedAccessKeyName={self.policy};SharedAccessKey={self.key};"
            f"EntityPath={hub}" + ("" if tls else ";UseDevelopmentEmulator=true")
        )


def connection_file(hub: Path) -> Path:
    return hub.with_name(f"{hub.name}.connection")


def access_key(hub: Path) -> AccessKey:
    """The key of the hub's endpoint; a new one if there is none yet."""
    path = connection_file(hub)
    try:
        text = path.read_text()
        others = stat.S_IMODE(path.stat().st_mode) & 0o077
    except FileNotFoundError:
        return AccessKey(key=base64.b64encode(secrets.token_bytes(32)).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}; remove it to get a new key") from error
    found = _KEY.search(text)
    if found is None:
        raise BadInput(f"{path} holds no connection string; remove it to get a new key")
    if others:
        raise BadInput(f"others can read the key in {path}; run: chmod 600 {path}")
    return AccessKey(policy=found[1], key=found[2])


def keep_connection(hub: Path, connection: str) -> Path:
    """Write it such that nobody else can read it, and nobody reads half of it."""
    path = connection_file(hub)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(connection + "\n")
        partial.replace(path)
    except OSError as error:
        raise BadInput(f"the key cannot be kept in {path}: {error}") from error
    return path
