"""Unit ``notify``: posts every alert to a webhook (requirement H5).

A webhook that does not answer is down, for everybody: the alerts wait, however long it takes. One
that answers, and will not have this alert, is asked a few times more; then the alert is
dead-lettered and the others go on. One that says it has failed may be down or choke on this alert;
what it does with others tells.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from homes.pipelines.signature import HEADER as SIGNATURE
from homes.pipelines.signature import signature, webhook_secret
from leasehold import (
    BadInput,
    Change,
    ChangeFeedProcessor,
    Context,
    DeadLetters,
    LeaseholdError,
    LeaseStore,
    Retry,
    SinkUnavailable,
    StoreUnavailable,
)

NAME = "notify"
RETRY = Retry(attempts=30, backoff_s=0.5, backoff_max_s=60.0, then="dead-letter")
"""For a webhook that fails when asked: some twenty minutes, then the first alert is set aside."""
ANSWER_BYTES_MAX = 64 << 10
BUSY = frozenset((401, 408, 425, 429, 502, 503, 504))
"""Answers that mean the same as none; 401: the secret is wrong, for all alerts alike."""


class WebhookDown(SinkUnavailable):
    """There was no answer, or one that says to come again later. No alert is to blame."""


class WebhookSilent(WebhookDown):
    """There was no answer at all. To ask for every alert would take a timeout each."""


class WebhookFailed(LeaseholdError):
    """The webhook answered that something went wrong on its side."""


class WebhookRefused(LeaseholdError):
    """The webhook answered that it does not take this alert."""


def notify_unit(
    container: Any,
    store: LeaseStore,
    url: str,
    *,
    dead_letters: DeadLetters,
    secret: str | None = None,
    timeout_s: float = 5.0,
    attempts: int = 5,
    backoff_s: float = 0.5,
    concurrency: int = 8,
    headers: Mapping[str, str] | None = None,
    retry: Retry = RETRY,
    start: str = "beginning",
    poll_interval_s: float = 0.25,
    **settings: Any,
) -> ChangeFeedProcessor:
    """One instance of the unit. ``secret``: calls are signed with it; None: it is in the
    environment, see ``Webhook``. ``attempts`` and ``backoff_s`` are for alerts that are refused,
    ``retry`` is for a webhook that fails. ``settings``: of ``ChangeFeedProcessor``."""
    if attempts < 1 or concurrency < 1 or not backoff_s >= 0:
        raise BadInput(
            f"attempts={attempts} and concurrency={concurrency} are 1 or more, "
            f"backoff_s={backoff_s} is 0 or more"
        )
    hook = Webhook(url, secret=secret, timeout_s=timeout_s, headers=headers)
    return ChangeFeedProcessor(
        container,
        name=NAME,
        on_changes=_Notify(hook, attempts, backoff_s, concurrency),
        store=store,
        dead_letters=dead_letters,
        retry=retry,
        start=start,
        poll_interval_s=poll_interval_s,
        **settings,
    )


class Webhook:
    """Posts documents. Threads may share it; each keeps a connection of its own."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        timeout_s: float = 5.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``secret``: calls are signed with it; None: it is in ``LEASEHOLD_WEBHOOK_SECRET``, or in
        the file that ``LEASEHOLD_WEBHOOK_SECRET_FILE`` names."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or "@" in parts.netloc:
            # Not quoted: a webhook's address is often a secret.
            raise BadInput("a webhook is http(s)://host/path; secrets belong in headers=")
        if not 0 < timeout_s < float("inf"):
            raise BadInput(f"timeout_s is {timeout_s}; give seconds, more than 0")
        self._secret = webhook_secret(secret)
        https = parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        self.host = host
        self._open = partial(kind, host, port, timeout=timeout_s)
        self._path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": "leasehold",
            **(headers or {}),
        }
        self._mine = threading.local()

    def post(self, document: Mapping[str, Any]) -> None:
        """Returns when the webhook has it. ``Idempotency-Key`` is the document's id, so that the
        receiver can tell one that comes again."""
        fields = {name: value for name, value in document.items() if not name.startswith("_")}
        body = json.dumps(fields, separators=(",", ":")).encode()
        key = quote(str(document["id"]), safe="-_.:@+")
        signed = signature(self._secret, body, int(time.time()))
        headers = {**self._headers, "Idempotency-Key": key, SIGNATURE: signed}
        status = self._request(body, headers)
        if status in BUSY:
            raise WebhookDown(f"the webhook at {self.host} takes nothing now: it answered {status}")
        if status >= 500:
            raise WebhookFailed(f"the webhook at {self.host} failed: it answered {status}")
        if not 200 <= status < 300:
            raise WebhookRefused(f"the webhook at {self.host} answered {status}")

    def _request(self, body: bytes, headers: Mapping[str, str]) -> int:
        kept: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        try:
            if kept is not None:
                try:
                    return self._send(kept, body, headers)
                except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError):
                    pass  # closed by the other side since; that says nothing about the webhook
            return self._send(self._open(), body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise WebhookSilent(
                f"the webhook at {self.host} does not answer: {type(error).__name__}: {error}"
            ) from error

    def _send(
        self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]
    ) -> int:
        self._mine.connection = None
        try:
            connection.request("POST", self._path, body, dict(headers))
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES_MAX)
        except BaseException:
            connection.close()
            raise
        if answer.isclosed() and not answer.will_close:
            self._mine.connection = connection
        else:
            connection.close()
        return answer.status


@dataclass(slots=True)
class _Range:
    """What is known of a batch that failed, for its next try."""

    epoch: int
    done: set[int] = field(default_factory=set)
    """LSNs of what is delivered."""
    failed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By LSN: how often the webhook failed on it and not on others, and how many it had taken."""

    def forget(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.done.discard(change.lsn)
            self.failed.pop(change.lsn, None)


class _Notify:
    """The handler."""

    def __init__(self, hook: Webhook, attempts: int, backoff_s: float, concurrency: int) -> None:
        self._hook, self._attempts, self._backoff_s = hook, attempts, backoff_s
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="notify")
        self._ranges: dict[str, _Range] = {}
        self._taken, self._lock = 0, threading.Lock()

    def __call__(self, changes: Sequence[Change], context: Context) -> None:
        known = self._ranges.get(context.partition)
        if known is None or known.epoch != context.epoch:  # others had it meanwhile, or a rewind
            known = self._ranges[context.partition] = _Range(context.epoch)
        left = [change for change in changes if change.document and change.lsn not in known.done]
        silent: list[WebhookSilent] = []
        failures = list(self._threads.map(lambda c: self._try(c, context, known, silent), left))
        known.done.update(
            change.lsn for change, failure in zip(left, failures, strict=True) if failure is None
        )
        for failure in sorted(filter(None, failures), key=_counts):
            raise failure
        known.forget(changes)

    def _try(
        self, change: Change, context: Context, known: _Range, silent: list[WebhookSilent]
    ) -> Exception | None:
        """None: delivered, or dead-lettered."""
        for attempt in range(1, self._attempts + 1):
            if silent:
                return silent[0]
            try:
                self._post(change, known)
                return None
            except WebhookRefused as error:
                if attempt == self._attempts:
                    return _bury(change, error, context)
                time.sleep(min(self._backoff_s * 2 ** (attempt - 1), 10.0))
            except WebhookFailed as error:
                blamed, _ = known.failed[change.lsn]
                return _bury(change, error, context) if blamed >= self._attempts else error
            except WebhookSilent as error:
                silent.append(error)
                return error
            except Exception as error:
                return error
        return None

    def _post(self, change: Change, known: _Range) -> None:
        assert change.document is not None
        taken = self._taken
        try:
            self._hook.post(change.document)
        except WebhookFailed:
            # Only if it took others since the last time is this one to blame.
            blamed, taken_then = known.failed.get(change.lsn, (0, taken))
            known.failed[change.lsn] = blamed + (taken > taken_then), taken
            raise
        with self._lock:
            self._taken += 1


def _counts(failure: Exception) -> bool:
    """Whether it counts against the alerts; one that does not comes first."""
    return not isinstance(failure, SinkUnavailable)


def _bury(change: Change, error: Exception, context: Context) -> Exception | None:
    try:
        context.dead_letter(change, error)
    except StoreUnavailable as trouble:
        unavailable = SinkUnavailable(f"an alert cannot be set aside now: {trouble}")
        unavailable.__cause__ = trouble
        return unavailable
    except Exception as trouble:
        return trouble
    return None
