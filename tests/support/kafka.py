"""Real Kafka brokers for tests and measurements: KRaft nodes, each a small Java process.

    with kafka.cluster() as server: ...     # one node; cluster(3): three
    topic = server.topic(partitions=3)
    open_feed(server.url(topic))

Each node listens on free loopback ports, without security, with user names (SASL) and, if asked to,
with TLS, and keeps its data in a temporary folder. It is killed at the end of the block, or when
this process dies. A test can take one away for a while: ``with server.nodes[0].down():``, ``with
server.nodes[0].frozen():``.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from leasehold.endpoints.amqp.tls import certificate
from support import servers

JARS = servers.TOOLS / "jars" / "kafka"
# A broker that lives for a minute earns back neither a second compiler nor a large heap.
JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
USERS = {"admin": "admin-secret", "reader": "reader-secret"}
"""Who may sign in at the listener with security. The first may do everything, others what they were
granted."""
LISTENERS = ("CONTROLLER", "PLAIN", "SECURE", "SCRAM", "MUTUAL")
WITH_TLS = ("SCRAM", "MUTUAL")
START_BOUND_S = 240
"""Three Java processes on a machine with other things to do take their time."""
CREATE_BOUND_S = 60

LOG4J = """
rootLogger.level = WARN
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c{1})%n
"""
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "listener.security.protocol.map": (
        "PLAIN:PLAINTEXT,SECURE:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL,MUTUAL:SSL"
    ),
    "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.threads": "1",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    # A broker that was killed is missed, and comes back, in seconds.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    address: str
    secure: str
    """The same node's listener that asks for a user name and a password."""
    scram: str
    """The listener with TLS that asks for a user of SCRAM, if the cluster was started with TLS."""
    mutual: str
    """The listener with TLS that asks for a certificate of the client."""
    frozen: servers.Outage
    down: servers.Outage
    """Killed, and started again with its data on its ports."""


@dataclass(frozen=True, kw_only=True)
class Kafka:
    nodes: tuple[Node, ...]
    tls: Path | None = None
    """The folder of the certificates: ``broker.certificate.pem`` is what clients must trust,
    ``client.certificate.pem`` and ``client.tls-key.pem`` are whom brokers trust."""
    users: Mapping[str, str] = field(default_factory=lambda: USERS, repr=False)

    @property
    def brokers(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def secure(self) -> str:
        return ",".join(node.secure for node in self.nodes)

    def add_scram_user(self, name: str, mechanism: ScramMechanism, password: str) -> None:
        found = ScramCredentialInfo(mechanism, 4096)
        wanted = UserScramCredentialUpsertion(name, found, password.encode())
        self.admin.alter_user_scram_credentials([wanted])[name].result(CREATE_BOUND_S)

    def allow(self, user: str, topic: str, *operations: AclOperation) -> None:
        """Known to the brokers when this returns."""
        place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
        rules = [
            AclBinding(*place, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for future in self.admin.create_acls(rules).values():
            future.result(CREATE_BOUND_S)
        anybody: Any = None  # which the library's types do not allow
        known = AclBindingFilter(*place, anybody, anybody, AclOperation.ANY, AclPermissionType.ANY)
        deadline = time.monotonic() + CREATE_BOUND_S
        while len(self.admin.describe_acls(known).result(CREATE_BOUND_S)) < len(rules):
            if time.monotonic() > deadline:
                raise servers.ServerFailed(f"{self.brokers} do not know what {user} may do")
            time.sleep(0.02)

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.brokers, "log_level": 2})

    def url(self, topic: str, **settings: str) -> str:
        query = f"?{urlencode(settings)}" if settings else ""
        return f"kafka://{self.brokers}/{topic}{query}"

    def topic(self, partitions: int = 3, name: str | None = None, **config: str | int) -> str:
        """A new topic, known to every node when this returns."""
        name = name or f"t-{uuid4().hex[:12]}"
        wanted = NewTopic(
            name,
            partitions,
            min(3, len(self.nodes)),
            config={key.replace("_", "."): str(value) for key, value in config.items()},
        )
        self.admin.create_topics([wanted])[name].result(CREATE_BOUND_S)
        self.await_partitions(name, partitions)
        return name

    def upgrade(self, feature: str, level: int) -> None:
        """Features above the minimum: the storage tool would have turned them on."""
        command: servers.Command = [_java(), *JVM, "-cp", f"{JARS}/*"]
        command += ["org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", self.brokers]
        command += ["upgrade", "--feature", f"{feature}={level}"]
        subprocess.run(command, check=True, capture_output=True, timeout=START_BOUND_S)

    def await_partitions(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + CREATE_BOUND_S
        for node in self.nodes:
            admin = AdminClient({"bootstrap.servers": node.address, "log_level": 2})
            while _leaders(admin, topic) != partitions:
                if time.monotonic() > deadline:
                    raise servers.ServerFailed(f"{node.address} does not know {topic}")
                time.sleep(0.02)


def _leaders(admin: AdminClient, topic: str) -> int:
    try:
        found = admin.describe_topics(TopicCollection([topic]))[topic].result(CREATE_BOUND_S)
    except KafkaException:
        return 0
    return sum(each.leader is not None for each in found.partitions)


@contextmanager
def cluster(nodes: int = 1, *, tls: bool = False, **settings: str) -> Iterator[Kafka]:
    """``tls``: with two more listeners. ``settings``: of the brokers, with underscores for
    dots."""
    if not any(JARS.glob("kafka-server-*.jar")):
        raise servers.ServerFailed(f"{JARS} has no Kafka: `make test` sets it up")
    more = {name.replace("_", "."): value for name, value in settings.items()}
    with ExitStack() as stack:
        folder = stack.enter_context(servers._folder())
        yield _start(stack, folder, nodes, tls, more)


def _start(stack: ExitStack, folder: Path, nodes: int, tls: bool, more: Mapping[str, str]) -> Kafka:
    places = [
        {name: f"127.0.0.1:{stack.enter_context(servers.reserved_port())}" for name in LISTENERS}
        for _ in range(nodes)
    ]
    voters = ",".join(f"{number}@{at['CONTROLLER']}" for number, at in enumerate(places, 1))
    (folder / "log4j2.properties").write_text(LOG4J)
    secured = _tls_settings(folder) if tls else {}
    cluster_id, programs = _id(), []
    for number, at in enumerate(places, 1):
        home = folder / f"node{number}"
        used = {name: at[name] for name in LISTENERS if tls or name not in WITH_TLS}
        listeners = [f"{name}://{address}" for name, address in used.items()]
        own = {
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners[1:]),
            "log.dirs": str(home / "data"),
            "listener.name.secure.plain.sasl.jaas.config": _accounts(),
        }
        settings = {**SETTINGS, **_replicas(nodes), **own, **secured, **more}
        _write(home, settings, cluster_id, number)
        command: servers.Command = [_java(), *JVM, "-cp", f"{JARS}/*"]
        command += [f"-Dlog4j2.configurationFile={folder}/log4j2.properties"]
        command += ["kafka.Kafka", home / "server.properties"]
        program = servers._Program(command, home, stop=signal.SIGKILL)
        programs.append(stack.enter_context(program))
    found = []
    for number, (at, program) in enumerate(zip(places, programs, strict=True), 1):
        servers._wait(program, partial(_answers, at["PLAIN"], nodes), START_BOUND_S)
        node = Node(
            address=at["PLAIN"],
            secure=at["SECURE"],
            scram=at["SCRAM"],
            mutual=at["MUTUAL"],
            frozen=partial(servers._frozen, folder / f"node{number}"),
            # Others may be away as well when it comes back.
            down=partial(servers._down, program, partial(_answers, at["PLAIN"], 1), START_BOUND_S),
        )
        found.append(node)
    return Kafka(nodes=tuple(found), tls=folder if tls else None)


def _tls_settings(folder: Path) -> dict[str, str]:
    """Certificates of the brokers and of a client, which nobody else vouches for."""
    broker, client = (certificate(folder / name, "127.0.0.1") for name in ("broker", "client"))
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.scram.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(client.public),
    }
    for name in WITH_TLS:
        settings[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
        settings[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(broker.private)
    return settings


def _write(home: Path, settings: Mapping[str, str], cluster_id: str, number: int) -> None:
    """As the storage tool formats a folder, without a second Java process for it."""
    data = home / "data"
    data.mkdir(parents=True)
    (home / "server.properties").write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items())
    )
    (data / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster_id}\nnode.id={number}\ndirectory.id={_id()}\n"
    )


def _replicas(nodes: int) -> dict[str, str]:
    copies, least = str(min(3, nodes)), str(max(1, min(3, nodes) - 1))
    return {
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": least,
        "default.replication.factor": copies,
        "min.insync.replicas": least,
    }


def _accounts() -> str:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"


def _answers(address: str, nodes: int) -> bool:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        return len(admin.list_topics(timeout=2).brokers) >= nodes
    except KafkaException:
        return False


def _java() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "java")
    if not found.exists():
        raise servers.ServerFailed(f"{found} is missing: `make test` sets up Java")
    return found


def _id() -> str:
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
