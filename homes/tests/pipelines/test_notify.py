import asyncio
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from support.processing import FAST, open_leases, running, until, wait_until

import leasehold as lh
from homes.pipelines.notify import (
    Webhook,
    WebhookDown,
    WebhookFailed,
    WebhookRefused,
    WebhookSilent,
    notify_unit,
)
from homes.pipelines.signature import HEADER, is_signed, signature, webhook_secret
from homes.pipelines.webhook_receiver import Receiver as AnyReceiver

SECRET = "a secret that only tests know"
Receiver = partial(AnyReceiver, secret=SECRET)
QUICK = lh.Retry(attempts=50, backoff_s=0.01, backoff_max_s=0.05, then="dead-letter")


@pytest.fixture(autouse=True)
def known_secret(monkeypatch):
    """As it comes to a unit: by the environment."""
    monkeypatch.setenv("LEASEHOLD_WEBHOOK_SECRET", SECRET)


@pytest.fixture
def container(tmp_path):
    path = tmp_path / "alerts.db"
    with lh.Container.create(
        path, name="alerts", namespace="homes", partition_key="/home_id", ranges=2
    ) as container:
        yield container


def raise_alerts(container, count, first=0):
    alerts = [
        {"id": f"a{n}", "home_id": f"H{n:06d}", "type": "glass", "value": 1}
        for n in range(first, first + count)
    ]
    container.upsert_many(alerts)
    return {alert["id"] for alert in alerts}


def unit(container, folder, url, **settings):
    defaults = {"retry": QUICK, "backoff_s": 0.01, "timeout_s": 5}
    letters = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
    found = notify_unit(
        container,
        open_leases(folder),
        url,
        dead_letters=letters,
        **(FAST | defaults | settings),
    )
    found._pace = replace(found._pace, retry_s=0.01, retry_max_s=0.05)  # what QUICK is for retries
    return found


def letters_in(folder):
    async def listed():
        letters = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
        found = await letters.list(lh.LetterFilter(), limit=1000)
        await letters.close()
        return list(found)

    return asyncio.run(listed())


def test_every_alert_is_posted_once_also_those_from_before_the_unit(container, tmp_path):
    ids = raise_alerts(container, 250)
    with Receiver() as receiver:
        unit(container, tmp_path, receiver.url).run(until_drained=True)
        assert receiver.ids == ids
        assert receiver.posts == receiver.count == 250
        alert = receiver.recent[0]
    assert alert == {
        "id": alert["id"],
        "home_id": f"H{int(alert['id'][1:]):06d}",
        "type": "glass",
        "value": 1,
    }


def test_a_webhook_that_is_down_for_a_while_gets_all_alerts_afterwards(container, tmp_path, port):
    ids = raise_alerts(container, 120)
    errors = []
    url = f"http://127.0.0.1:{port}/alerts"
    processor = unit(container, tmp_path, url, on_error=errors.append)

    async def main():
        async with running(processor):
            await until(lambda: len(errors) >= 6)
            with Receiver(port) as receiver:
                receiver.status = 503
                await until(lambda: receiver.posts >= 10)
                receiver.status = 200
                await until(lambda: receiver.ids == ids)

    asyncio.run(main())
    assert letters_in(tmp_path) == []


class Picky:
    """A webhook that answers as it is told, by alert id."""

    def __init__(self, answers, default=200):
        picky, self.seen = self, []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                picky.seen.append((self.headers["Idempotency-Key"], json.loads(body)["id"]))
                self.send_response(answers.get(json.loads(body)["id"], default))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_an_alert_that_is_refused_is_dead_lettered_after_so_many_tries(container, tmp_path):
    raise_alerts(container, 20)
    with Picky({"a3": 422, "a5": 404}) as hook:
        unit(container, tmp_path, hook.url, attempts=3).run(until_drained=True)
        keys = [key for key, _ in hook.seen]
        assert keys.count("a3") == keys.count("a5") == 3
        assert len(keys) == 18 + 6
        letters = letters_in(tmp_path)
        assert sorted(json.loads(letter.body)["id"] for letter in letters) == ["a3", "a5"]
        assert any("answered 422" in letter.error for letter in letters)


def test_a_try_again_leaves_out_what_is_delivered(container, tmp_path):
    raise_alerts(container, 40)
    answers = {"a7": 503}
    with Picky(answers) as hook:
        processor = unit(container, tmp_path, hook.url)

        async def main():
            async with running(processor):
                await until(lambda: [key for key, _ in hook.seen].count("a7") >= 5)
                answers.clear()
                await until(lambda: len({key for key, _ in hook.seen}) == 40)

        asyncio.run(main())
        keys = [key for key, _ in hook.seen]
    assert {keys.count(key) for key in set(keys) - {"a7"}} == {1}


def test_a_webhook_that_stays_down_keeps_alerts_waiting_whatever_the_attempts(
    container, tmp_path, port
):
    ids, errors = raise_alerts(container, 4), []
    retry = lh.Retry(attempts=2, backoff_s=0, backoff_max_s=0, then="dead-letter")
    url = f"http://127.0.0.1:{port}/"
    processor = unit(container, tmp_path, url, retry=retry, on_error=errors.append)

    async def main():
        async with running(processor):
            await until(lambda: len(errors) >= 8)  # of two ranges: one was tried four times
            with Receiver(port) as receiver:
                await until(lambda: receiver.ids == ids)

    asyncio.run(main())
    assert {type(error) for error in errors} == {WebhookSilent}
    assert letters_in(tmp_path) == []


def test_a_webhook_that_answers_nothing_is_not_asked_for_every_alert(container, tmp_path):
    raise_alerts(container, 100)
    errors = []
    with Deaf() as hook:
        settings = {"timeout_s": 0.2, "concurrency": 2, "on_error": errors.append}
        processor = unit(container, tmp_path, hook.url, **settings)

        async def main():
            async with running(processor):
                await until(lambda: len(errors) >= 2)

        asyncio.run(main())
        assert hook.connections <= 2 * (len(errors) + 2)


class Deaf:
    """Takes connections and never says a word."""

    def __init__(self):
        self.connections, self._kept = 0, []
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}/"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self):
        with suppress(OSError):
            while True:
                self._kept.append(self._server.accept())
                self.connections += 1

    def __exit__(self, *_):
        self._server.close()


def test_a_webhook_that_fails_for_everybody_is_waited_for(container, tmp_path):
    ids = raise_alerts(container, 30)
    with Receiver() as receiver:
        receiver.status = 500
        processor = unit(container, tmp_path, receiver.url, attempts=1)

        async def main():
            async with running(processor):
                await until(lambda: receiver.posts >= 30 * 4)
                receiver.status = 200
                await until(lambda: receiver.ids == ids)

        asyncio.run(main())
    assert letters_in(tmp_path) == []


def test_an_alert_that_the_webhook_fails_on_while_it_takes_others_is_set_aside(container, tmp_path):
    raise_alerts(container, 20)
    with Picky({"a5": 500}) as hook:
        forever = lh.Retry(backoff_s=0.01, backoff_max_s=0.01)
        processor = unit(container, tmp_path, hook.url, attempts=3, retry=forever)

        async def main():
            async with running(processor):
                first = 20
                while not letters_in_thread(tmp_path):
                    assert first < 5_000, "it is never set aside"
                    raise_alerts(container, 1, first)
                    first += 1
                    await asyncio.sleep(0.02)
                await until(lambda: len({key for key, _ in hook.seen}) == first)

        asyncio.run(main())
        assert [key for key, _ in hook.seen].count("a5") >= 4
    (letter,) = letters_in(tmp_path)
    assert json.loads(letter.body)["id"] == "a5"
    assert "answered 500" in letter.error


def letters_in_thread(folder):
    """From within a running loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(letters_in, folder).result()


def test_an_alert_that_a_webhook_fails_on_and_nothing_else_comes_is_set_aside_in_the_end(
    container, tmp_path
):
    raise_alerts(container, 4)
    retry = lh.Retry(attempts=2, backoff_s=0, backoff_max_s=0, then="dead-letter")
    with Picky({}, default=500) as hook:
        unit(container, tmp_path, hook.url, retry=retry).run(until_drained=True)
    letters = letters_in(tmp_path)
    assert len(letters) == 4
    assert "answered 500" in letters[0].error


def test_dead_letters_can_be_posted_later(container, tmp_path):
    raise_alerts(container, 4)
    with Picky({}, default=403) as hook:
        unit(container, tmp_path, hook.url, attempts=1).run(until_drained=True)
    assert len(letters_in(tmp_path)) == 4
    with Receiver() as receiver:
        hook = Webhook(receiver.url)

        async def main():
            letters = lh.open_dead_letters(f"sqlite:///{tmp_path}/dead.db")
            await lh.redrive(
                letters,
                lambda letter: hook.post(lh.Change.from_event(letter.event).document),
                lh.LetterFilter(group="notify"),
            )
            await letters.close()

        asyncio.run(main())
        assert receiver.count == 4


def test_a_hostile_id_cannot_add_a_header(container, tmp_path):
    container.upsert({"id": "a\r\nX-Evil: 1", "home_id": "H1"})
    container.upsert({"id": "über", "home_id": "H1"})
    with Picky({}) as hook:
        unit(container, tmp_path, hook.url).run(until_drained=True)
        assert sorted(hook.seen) == [
            ("%C3%BCber", "über"),
            ("a%0D%0AX-Evil:%201", "a\r\nX-Evil: 1"),
        ]


def test_an_answer_that_never_comes_is_given_up_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        hook = Webhook(f"http://127.0.0.1:{deaf.getsockname()[1]}/", timeout_s=0.05)
        with pytest.raises(WebhookDown, match="does not answer"):
            hook.post({"id": "a"})


def test_a_kept_connection_that_was_closed_meanwhile_is_opened_again(port):
    hook = Webhook(f"http://127.0.0.1:{port}/")
    for n in range(3):
        with Receiver(port) as receiver:
            hook.post({"id": f"a{n}"})
            hook.post({"id": f"b{n}"})
            assert receiver.count == 2


def test_what_the_webhook_says_is_told_apart():
    with Receiver() as receiver:
        hook = Webhook(receiver.url)
        for status, error in (
            (503, WebhookDown),
            (429, WebhookDown),
            (500, WebhookFailed),
            (404, WebhookRefused),
        ):
            receiver.status = status
            with pytest.raises(error, match=str(status)):
                hook.post({"id": "a"})
        assert receiver.count == 0


@pytest.mark.parametrize(
    "url", ["", "data/x", "ftp://host/", "http://", "http://user:secret@host/", "http://host:x/"]
)
def test_an_address_that_is_none_is_refused_without_quoting_it(url):
    with pytest.raises(lh.BadInput, match="a webhook is") as refusal:
        Webhook(url)
    assert "secret@" not in str(refusal.value)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Idempotency-Key": "a"}, b"no json", 400),
        ({"Idempotency-Key": "a"}, b"[]", 400),
        ({}, b'{"id": "a"}', 400),
        ({"Idempotency-Key": "a"}, b'{"id": 1}', 400),
        ({"Content-Length": str(1 << 30)}, b"", 413),
        ({"Content-Length": "many"}, b"", 411),
    ],
)
def test_the_receiver_takes_only_alerts(headers, body, status):
    with Receiver() as receiver:
        port = int(receiver.url.split(":")[2].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        signed = {HEADER: signature(SECRET, body, int(time.time()))}
        connection.request("POST", "/alerts", body, headers | signed)
        assert connection.getresponse().status == status
        connection.close()
        assert receiver.count == 0


WORKER = """
import sys
import leasehold as lh
from homes.pipelines.notify import notify_unit
folder, url = sys.argv[1:]
notify_unit(
    lh.Container.open(f"{folder}/alerts.db"),
    lh.open_store(f"sqlite:///{folder}/leases.db"),
    url,
    dead_letters=lh.open_dead_letters(f"sqlite:///{folder}/dead.db"),
    lease_ttl_s=30, balance_interval_s=0.2, max_items=10, concurrency=1, instance="n",
).run(until_drained=True)
"""


def test_killed_and_restarted_every_alert_is_delivered(container, tmp_path):
    ids = raise_alerts(container, 1500)
    with Receiver() as receiver:
        for _ in range(3):
            before = receiver.count
            process = subprocess.Popen([sys.executable, "-c", WORKER, tmp_path, receiver.url])
            wait_until(lambda old=before: receiver.count > old)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        worker = [sys.executable, "-c", WORKER, tmp_path, receiver.url]
        subprocess.run(worker, check=True, timeout=120)
        assert receiver.ids == ids
        assert receiver.posts <= 1500 + 3 * 2 * 10
    assert letters_in(tmp_path) == []


BODY = b'{"id":"a1"}'


@pytest.mark.parametrize(
    ("made", "now_s", "right"),
    [
        (signature(SECRET, BODY, 1000), 1000, True),
        (signature(SECRET, BODY, 1000), 1300, True),
        (signature(SECRET, BODY, 1000), 700, True),
        (signature(SECRET, BODY, 1000), 1301, False),
        (signature(SECRET, BODY, 1000), 699, False),
        (signature(SECRET, BODY, 1000).replace("t=1000", "t=1300"), 1300, False),
        (signature(SECRET, BODY + b" ", 1000), 1000, False),
        (signature(SECRET + "!", BODY, 1000), 1000, False),
        (signature(SECRET, BODY, 1000).upper(), 1000, False),
        (signature(SECRET, BODY, 1000) + "0", 1000, False),
        ("", 1000, False),
        ("t=,v1=", 1000, False),
        ("t=1000,v1=é", 1000, False),
    ],
)
def test_only_what_was_signed_with_the_secret_not_long_ago_is_believed(made, now_s, right):
    assert is_signed(SECRET, made, BODY, now_s=now_s) == right


def test_the_receiver_refuses_calls_that_are_not_ours():
    now = [5000.0]
    with Receiver(clock=lambda: now[0]) as receiver:
        good = signature(SECRET, BODY, 5000)
        assert receiver.take(BODY, "a1", "") == 401
        assert receiver.take(BODY, "a1", signature("another secret, as long", BODY, 5000)) == 401
        assert receiver.take(BODY.replace(b"a1", b"a2"), "a2", good) == 401
        assert receiver.count == 0
        assert receiver.take(BODY, "a1", good) == 200
        now[0] += 301
        assert receiver.take(BODY, "a1", good) == 401  # the same call, seen before and sent again


@pytest.mark.parametrize("length", [b"\xb2", b"9" * 5000, b"-1", b"", b"500"])
def test_what_others_send_to_the_receiver_leaves_no_stack_trace(length, capfd):
    with AnyReceiver() as receiver:
        where = urlsplit(receiver.url)
        with socket.create_connection((where.hostname, where.port), 60) as wire:
            wire.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\nx")
            if length == b"500":  # it goes away in the middle
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                assert wire.recv(12) in (b"HTTP/1.1 411", b"HTTP/1.1 413")
        wait_until(lambda: not receiver._server._connections)
    assert capfd.readouterr().err == ""


def test_a_receiver_that_does_not_know_us_is_waited_for():
    """It is our secret that is wrong, and no alert's fault."""
    with AnyReceiver() as stranger:
        with pytest.raises(WebhookDown, match="answered 401"):
            Webhook(stranger.url).post({"id": "a1"})
        assert (stranger.posts, stranger.count) == (1, 0)
        Webhook(stranger.url, secret=stranger.secret).post({"id": "a1"})
        assert stranger.count == 1


def test_the_secret_comes_by_environment_or_file_and_must_be_there(tmp_path):
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert webhook_secret(None, {"LEASEHOLD_WEBHOOK_SECRET": SECRET}) == SECRET
    assert webhook_secret(None, {"LEASEHOLD_WEBHOOK_SECRET_FILE": str(file)}) == SECRET
    assert webhook_secret(SECRET, {"LEASEHOLD_WEBHOOK_SECRET": "another"}) == SECRET
    for environ in (
        {},
        {"LEASEHOLD_WEBHOOK_SECRET": "short"},
        {"LEASEHOLD_WEBHOOK_SECRET_FILE": str(tmp_path / "nowhere")},
    ):
        with pytest.raises(lh.BadInput, match="secret"):
            webhook_secret(None, environ)
