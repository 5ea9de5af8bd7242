"""Questions to the brokers: what a topic is, where its partitions begin and end, what a consumer
group has committed. All of it blocks, for ``timeout_s`` at most, and errors say what to do."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, NoReturn, TypeVar

from leasehold.errors import BadInput, FeedUnavailable, LeaseholdError, MissingExtra
from leasehold.feeds.kafka.settings import SECRETS, USERNAME, KafkaSettings

try:
    from confluent_kafka import (
        OFFSET_BEGINNING,
        OFFSET_END,
        Consumer,
        ConsumerGroupTopicPartitions,
        KafkaError,
        KafkaException,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, ConfigResource
except ImportError as error:
    raise MissingExtra(
        f"Kafka feeds need confluent-kafka ({error}): pip install 'leasehold[kafka]'"
    ) from error

T = TypeVar("T")
OPENING = 2.5
"""So many times longer than any later request may a first one take."""
LISTEN_S = 0.2
"""How often, while opening, to look whether the brokers refuse us."""
NEW_TOPIC_S = 3.0
"""A topic that was just created is known to every broker after so long."""
NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
PASSING = NO_TOPIC | {
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
"""Right after a topic or a leader has changed, or while a transaction ends."""
SILENT = {
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY,
}
"""No broker has answered; the last one is of a connection that was given up meanwhile."""
AGAIN_S = 0.1
ATTEMPT_S = 1.0
"""Who waits for a broker that is gone is not told where its partitions are now; who asks again is.
"""
REFRESH = {"topic.metadata.refresh.interval.ms": 1_000}
"""How often to look up leaders and controller where nothing is fetched that would tell of them: by
default they are those of five minutes ago."""
DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
REFUSED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
REFUSED_CERTIFICATE = re.compile(r"alert (\w+ )*certificate")
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""How a broker that has no topic ids spells one."""


class Topic(NamedTuple):
    id: str
    """Empty: the brokers have no topic ids."""
    partitions: int


class Troubles:
    """The client library tells of connections that fail by a callback, not to the one who waits for
    an answer. What it told last explains why none came."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None
        self._refused: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        if error.code() in REFUSED or _insecure(error):
            self._refused = error
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    @property
    def refused(self) -> bool:
        """Waiting longer would not help."""
        return self._refused is not None

    def well(self) -> None:
        self._last = self._refused = None

    def explain(self, settings: KafkaSettings) -> LeaseholdError:
        """Of a request that was not answered in time."""
        if self._refused is not None and _insecure(self._refused):
            return BadInput(
                f"{settings.where}: no secure connection: {_said(self._refused)}. Look at "
                "security_protocol and ssl_ca_location in the URL, and at ssl_certificate_location "
                "if the brokers ask for a certificate of yours"
            )
        if self._refused is not None:
            return BadInput(
                f"{settings.where}: the brokers refuse the user or the password: "
                f"{_said(self._refused)}. Look at {USERNAME} and {SECRETS['sasl.password']} in the "
                "environment, and at sasl_mechanism in the URL"
            )
        why = f": {_said(self._last)}" if self._last is not None else ""
        return FeedUnavailable(
            f"{settings.where}: no answer within {settings.timeout_s:g} s{why}. Are the brokers "
            "up, and are these their addresses and security_protocol?"
        )


class KafkaClient:
    def __init__(self, settings: KafkaSettings, requests: Counter[str]) -> None:
        self.settings, self._requests = settings, requests
        self.troubles = Troubles()
        self._opened = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connected: AdminClient | None = connected(
            AdminClient, settings.config() | REFRESH | {"error_cb": self.troubles.heard}
        )
        self._lookups: dict[str, Consumer] = {}
        """By isolation level: what looks up offsets. The admin client could, but while a leader is
        gone it would keep a core busy with waiting for it."""

    def open(self) -> tuple[str, Topic]:
        """The cluster's id, and the topic, which has to be there."""
        topic = self.topic()
        cluster = self._ask("describe_cluster", lambda t: self._admin.describe_cluster(**t))
        self._opened = True
        return str(cluster.cluster_id), topic

    def topic(self) -> Topic:
        name = self.settings.topic
        found = self._ask(
            "describe_topics",
            lambda t: self._admin.describe_topics(TopicCollection([name]), **t)[name],
        )
        id = str(found.topic_id) if found.topic_id is not None else NO_ID
        return Topic("" if id == NO_ID else id, len(found.partitions))

    def message_bytes_max(self) -> int | None:
        """The topic's ``max.message.bytes``; None: the brokers do not tell this user."""
        topic = ConfigResource(ConfigResource.Type.TOPIC, self.settings.topic)
        try:
            found = self._ask(
                "describe_configs", lambda t: self._admin.describe_configs([topic], **t)[topic]
            )
            return int(found["max.message.bytes"].value)
        except (LeaseholdError, LookupError, TypeError, ValueError):
            return None

    def firsts(self, partitions: Iterable[int]) -> dict[int, int]:
        """Of each partition: the oldest offset kept."""
        return self._offsets(dict.fromkeys(partitions, OFFSET_BEGINNING), known)

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Behind the newest; behind the newest committed one, if only those are read."""
        return self._offsets(dict.fromkeys(partitions, OFFSET_END), known)

    def written_ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Behind the newest, whether it is committed or not."""
        return self._offsets(dict.fromkeys(partitions, OFFSET_END), known, "read_uncommitted")

    def at_times(self, partition: int, unix_ms: int) -> int | None:
        """The first offset of that time or later; None: there is none."""
        found = self._offsets({partition: unix_ms})[partition]
        return None if found < 0 else found

    def committed(self, group: str, partitions: Iterable[int]) -> dict[int, int]:
        """What a consumer group of Kafka has committed, where it has. What its last transaction
        commits is waited for: before that, there is an older offset."""
        name = self.settings.topic
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(name, p) for p in partitions])

        def ask(limit: dict[str, float]) -> dict[int, int]:
            told = self._admin.list_consumer_group_offsets([asked], require_stable=True, **limit)
            return committed_offsets(self._result(told[group]).topic_partitions)

        return self._retried("list_group_offsets", ask)

    def commit(self, group: str, offsets: Mapping[int, int]) -> dict[int, str]:
        """Have Kafka keep them for that group. Gives the reason by partition where it does not."""
        name = self.settings.topic
        wanted = ConsumerGroupTopicPartitions(
            group, [TopicPartition(name, p, at) for p, at in offsets.items()]
        )
        found = self._ask(
            "alter_group_offsets",
            lambda t: self._admin.alter_consumer_group_offsets([wanted], **t)[group],
        )
        return {
            each.partition: str(each.error.str())
            for each in found.topic_partitions
            if each.error is not None
        }

    def explained(self, error: KafkaError) -> LeaseholdError:
        """As one of ours: what to fix, or what to try again."""
        settings, code = self.settings, error.code()
        if code in NO_TOPIC and not self._opened:
            return BadInput(
                f"there is no topic {settings.topic} at {','.join(settings.brokers)}: check the "
                "name, or create it"
            )
        if code in DENIED:
            who = settings.client.get("sasl_username", "this user")
            return BadInput(
                f"{settings.where}: {who} has no permission ({_said(error)}): grant Describe and "
                "Read on the topic (Write to send; Read on the group for offsets)"
            )
        if code in REFUSED:
            self.troubles.heard(error)
        if code in SILENT | REFUSED:
            self._listen()
            return self.troubles.explain(settings)
        return FeedUnavailable(f"{settings.where}: {_said(error)}")

    def close(self) -> None:
        self._closed.set()

    def let_go(self) -> None:
        """Of the connections: each ends when the last call that uses it is over."""
        with self._lock:
            self._lookups.clear()
            self._connected = None

    def require_open(self) -> None:
        if self._closed.is_set():
            raise BadInput(f"the feed {self.settings.where} was closed; open it again")

    def _offsets(
        self,
        wanted: Mapping[int, int],
        checked: Callable[[dict[int, int]], dict[int, int]] = dict,
        isolation: str | None = None,
    ) -> dict[int, int]:
        """Of each partition: the offset of a time, or of the beginning or the end."""
        if not wanted:
            return {}
        lookup = self._lookup(isolation or self.settings.isolation_level)
        asked = [TopicPartition(self.settings.topic, p, time) for p, time in wanted.items()]

        def ask(limit: dict[str, float]) -> dict[int, int]:
            found = lookup.offsets_for_times(asked, timeout=limit["request_timeout"])
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
            return checked({each.partition: each.offset for each in found})

        return self._retried("list_offsets", ask)

    def _lookup(self, isolation: str) -> Consumer:
        with self._lock:
            self.require_open()
            if isolation not in self._lookups:
                more = {"group.id": "leasehold", "isolation.level": isolation}
                config = self.settings.config() | REFRESH | more
                self._lookups[isolation] = connected(Consumer, config)
            return self._lookups[isolation]

    @property
    def _admin(self) -> AdminClient:
        admin = self._connected
        if admin is None:
            self.require_open()
        assert admin is not None
        return admin

    def _listen(self) -> None:
        """Now is when callbacks are called."""
        if (admin := self._connected) is not None:
            admin.poll(0)

    def _ask(self, verb: str, ask: Callable[[dict[str, float]], Future[Any]]) -> Any:
        return self._retried(verb, lambda limit: self._result(ask(limit)))

    def _retried(self, verb: str, ask: Callable[[dict[str, float]], T]) -> T:
        """Leaders move, and not every broker knows of a new topic at once: asked again in time."""
        timeout_s = self.settings.timeout_s * (1 if self._opened else OPENING)
        began = time.monotonic()
        while True:
            self.require_open()
            self._requests[verb] += 1
            left_s = max(began + timeout_s - time.monotonic(), AGAIN_S)
            try:
                found = ask({"request_timeout": min(left_s, max(left_s / 4, ATTEMPT_S))})
            except KafkaException as error:
                code, took_s = error.args[0].code(), time.monotonic() - began
                silent = code in SILENT and not self.troubles.refused
                patience_s = timeout_s if silent else min(timeout_s, NEW_TOPIC_S)
                if not (silent or code in PASSING) or took_s >= patience_s:
                    raise self.explained(error.args[0]) from error
                time.sleep(AGAIN_S)
            else:
                self.troubles.well()
                return found

    def _result(self, future: Future[Any]) -> Any:
        # The library keeps to its own timeout; this is for when it does not.
        until = time.monotonic() + 2 * OPENING * self.settings.timeout_s
        while True:
            try:
                return future.result(LISTEN_S if not self._opened else OPENING)
            except FutureTimeout as error:
                self._listen()
                hopeless = not self._opened and self.troubles.refused
                if hopeless or time.monotonic() > until:
                    raise self.troubles.explain(self.settings) from error


def known(offsets: dict[int, int]) -> dict[int, int]:
    """While brokers start, an answer may lack a partition, with no error and an offset below 0."""
    if any(offset < 0 for offset in offsets.values()):
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    return offsets


def committed_offsets(answer: Iterable[Any]) -> dict[int, int]:
    """An offset below 0: none is committed. An error may be of one partition alone, where taking it
    for none would have the whole partition done again."""
    offsets: dict[int, int] = {}
    for each in answer:
        if each.error is not None:
            raise KafkaException(each.error)
        if each.offset >= 0:
            offsets[each.partition] = each.offset
    return offsets


def connected(kind: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    """A client of the library, which connects later but looks at its settings and files now."""
    try:
        return kind(config)
    except KafkaException as error:
        _refuse(error)


def _refuse(error: KafkaException) -> NoReturn:
    said = _said(error.args[0])
    remedy = f": look at {SECRETS['ssl.key.password']}" if "ssl.key" in said else ""
    raise BadInput(f"Kafka cannot be reached with these settings: {said}{remedy}") from None


def _insecure(error: KafkaError) -> bool:
    """Brokers that refuse our certificate, or miss one, say so after the handshake, where the
    library takes it for a broken connection."""
    return error.code() == KafkaError._SSL or bool(REFUSED_CERTIFICATE.search(_said(error)))


def _said(error: Any) -> str:
    return str(error.str()) if isinstance(error, KafkaError) else str(error)
