"""The names of instances that were given none."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from itertools import count
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from leasehold.core.model import Group

POD = "POD_NAME"
_taken: WeakValueDictionary[tuple[Group, str], Any] = WeakValueDictionary()
"""Stable names that processors of this process have."""


def name_for(processor: Any, group: Group, environ: Mapping[str, str] = os.environ) -> str:
    """In a pod that is told its name, the pod's, which is the same after a restart of the
    container: so an instance takes up its own leases at once. Its main process has just that name,
    another one adds its PID, and further processors of one group a number. Elsewhere hostname, PID
    and a random suffix."""
    pod = environ.get(POD, "").strip()
    if not pod:
        return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
    base = pod if os.getpid() == 1 else f"{pod}-{os.getpid()}"
    for number in count(1):
        name = base if number == 1 else f"{base}-{number}"
        other = _taken.get((group, name))
        if other is None or other.over:
            break
    _taken[group, name] = processor
    return name
