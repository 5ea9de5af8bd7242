"""Unit ``notify``: posts every alert to a webhook (H5).

A webhook that does not answer is down, for everybody: the alerts wait, and come again with growing
pauses. One that answers, and will not have this alert, is asked a few times more; then the alert is
dead-lettered and the others go on.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from leasehold.core.change import Change
from leasehold.core.retry import Retry
from leasehold.errors import BadInput, LeaseholdError
from leasehold.ports import DeadLetters, LeaseStore
from leasehold.processor.changefeed import ChangeFeedProcessor
from leasehold.processor.handlers import Context

NAME = "notify"
RETRY = Retry(attempts=30, backoff_s=0.5, backoff_max_s=60.0, then="dead-letter")
"""For a webhook that is down: some twenty minutes, then the first alert is set aside."""
ANSWER_BYTES_MAX = 64 << 10
BUSY = frozenset((408, 425, 429, 502, 503, 504))
"""Answers that mean the same as none."""


class WebhookDown(LeaseholdError):
    """There was no answer, or one that says to come again later. Try again."""


class WebhookRefused(LeaseholdError):
    """The webhook answered that it does not take this alert."""


def notify_unit(
    container: Any,
    store: LeaseStore,
    url: str,
    *,
    dead_letters: DeadLetters,
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
    """One instance of the unit. ``attempts`` and ``backoff_s`` are for alerts that are refused,
    ``retry`` is for a webhook that is down. ``settings``: of ``ChangeFeedProcessor``."""
    if attempts < 1 or concurrency < 1 or not backoff_s >= 0:
        raise BadInput(
            f"attempts={attempts} and concurrency={concurrency} are 1 or more, "
            f"backoff_s={backoff_s} is 0 or more"
        )
    hook = Webhook(url, timeout_s=timeout_s, headers=headers)
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
        self, url: str, *, timeout_s: float = 5.0, headers: Mapping[str, str] | None = None
    ) -> None:
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
        status = self._request(body, {**self._headers, "Idempotency-Key": key})
        if status in BUSY:
            raise WebhookDown(f"the webhook at {self.host} is busy: it answered {status}")
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
            raise WebhookDown(
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


class _Notify:
    """The delegate."""

    def __init__(self, hook: Webhook, attempts: int, backoff_s: float, concurrency: int) -> None:
        self._hook, self._attempts, self._backoff_s = hook, attempts, backoff_s
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="notify")
        self._done: dict[str, tuple[int, set[int]]] = {}
        """By range: the epoch, and what is delivered of a batch that failed, so that the next try
        leaves it out."""

    def __call__(self, changes: Sequence[Change], context: Context) -> None:
        epoch, done = self._done.get(context.partition, (0, set()))
        if epoch != context.epoch:  # another instance had the range meanwhile, or it was rewound
            done = set()
        self._done[context.partition] = context.epoch, done
        left = [change for change in changes if change.document and change.lsn not in done]
        failures = list(self._threads.map(lambda change: self._try(change, context), left))
        done.update(c.lsn for c, failure in zip(left, failures, strict=True) if failure is None)
        for failure in failures:
            if failure is not None:
                raise failure
        done.difference_update(change.lsn for change in changes)

    def _try(self, change: Change, context: Context) -> Exception | None:
        """None: delivered, or dead-lettered."""
        assert change.document is not None
        for attempt in range(1, self._attempts + 1):
            try:
                self._hook.post(change.document)
                return None
            except WebhookRefused as error:
                if attempt == self._attempts:
                    return _failure(partial(context.dead_letter, change, error))
                time.sleep(min(self._backoff_s * 2 ** (attempt - 1), 10.0))
            except Exception as error:
                return error
        return None


def _failure(action: Callable[[], None]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None
