import asyncio
import base64
import json
import os
import pty
import subprocess
from dataclasses import replace
from datetime import datetime

import pytest
from support.command_line import PROGRAM, leasehold

from leasehold.core.model import Checkpoint, Group
from leasehold.feeds.hub import Hub
from leasehold.operations.redrive import REDRIVEN_FROM
from leasehold.ports import LetterFilter
from leasehold.stores import open_dead_letters
from leasehold.testing.check_dead_letters import any_letter

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/dead.db"


@pytest.fixture
def hub(tmp_path):
    path = tmp_path / "sensors.db"
    Hub.create(path, name="sensors", namespace="homes.local", partitions=4).close()
    return path


def put(url, *letters):
    async def main():
        store = open_dead_letters(url)
        await store.put(letters)
        await store.close()

    asyncio.run(main())
    return [letter.id for letter in letters]


def left(url, **which):
    async def main():
        store = open_dead_letters(url)
        found = await store.list(LetterFilter(**which))
        await store.close()
        return [letter.sequence for letter in found]

    return asyncio.run(main())


def some(count, **changes):
    return [any_letter(GROUP, n, partition="1", **changes) for n in range(count)]


def bodies(path, partition):
    with Hub.open(path) as opened:
        return [
            event.body
            for event in opened.read_batch(partition, Checkpoint(next_sequence=0), 999).events
        ]


def dead_letters(*words, **how):
    return leasehold("dead-letters", *words, **how)


def refused(*words):
    done = dead_letters(*words, ok=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    return " ".join(done.stderr.split())


def test_list_shows_the_newest_first_and_how_many_more_there_are(url):
    ids = put(url, *some(5))
    shown = dead_letters("list", "--store", url, "--limit", 2)
    assert [word for word in shown.stdout.split() if word in ids] == [ids[4], ids[3]]
    assert "homes.local/sensors/alerts" in shown.stdout
    assert "1/4" in shown.stdout
    assert "ValueError: no such sensor" in shown.stdout
    assert "2 of 5 dead letters; --limit 5 shows all" in shown.stderr


def test_list_as_json_has_all_but_the_body(url):
    other = any_letter(replace(GROUP, name="activity"), 9)
    put(url, *some(2, partition_key="H1", properties={"kind": "door"}), other)
    rows = json.loads(dead_letters("list", "--store", url, "--json", "--oldest-first").stdout)
    assert [row["sequence"] for row in rows] == [0, 1, 9]
    row = rows[0]
    assert (row["namespace"], row["feed"], row["group"]) == ("homes.local", "sensors", "alerts")
    assert (row["partition"], row["partition_key"], row["attempts"]) == ("1", "H1", 5)
    assert row["properties"] == {"kind": "door"}
    assert row["error"] == "ValueError: no such sensor"
    assert (row["redriven_at"], row["redrives"], row["body_bytes"]) == (None, 0, 16)
    assert datetime.fromisoformat(row["dead_at"]).tzinfo is not None
    assert "body" not in row
    rows = json.loads(dead_letters("list", "--store", url, "--json", "--group", "activity").stdout)
    assert [row["sequence"] for row in rows] == [9]


def test_list_can_leave_out_what_was_redriven(url, hub):
    ids = put(url, *some(2))
    dead_letters("redrive", ids[0], "--store", url, "--hub", hub)
    rows = json.loads(dead_letters("list", "--store", url, "--json", "--open-only").stdout)
    assert [row["id"] for row in rows] == [ids[1]]


def test_a_store_that_is_not_there_is_named_and_not_made(tmp_path):
    shown = dead_letters("list", "--store", f"sqlite:///{tmp_path}/typo.db", ok=False)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "there is no file" in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_ids_and_errors_can_be_read_on_eighty_columns(url):
    (id,) = put(url, *some(1))
    env = {**os.environ, "COLUMNS": "80"}
    command = [*PROGRAM, "dead-letters", "list", "--store", url]
    text = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert id in text
    assert "ValueError: no" in text


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b'{"a":[1]}', "JSON", '{\n  "a": [\n    1\n  ]\n}'),
        ("{'a': 'ä'}".encode(), "text", "{'a': 'ä'}"),
        (b"two\n\tlines", "text", "two\n        lines"),
        (b'{"a": 1, "a": 2}', "text", '{"a": 1, "a": 2}'),
        (b"[" * 100_000, "text", "[[["),
        (b"\xff\x00A", "binary", "00000000  ff 00 41"),
        (b"\x1b[31mred", "binary", "00000000  1b 5b 33 31 6d 72 65 64"),
        (b'"\\u001b\\ud800"', "JSON", '"\\u001b\\ud800"'),
        (b"", "text", ""),
        (b"\xff" * 5000, "binary", "… 904 more bytes"),
    ],
    ids=[
        "json",
        "not quite json",
        "lines",
        "twice",
        "deep",
        "bytes",
        "escape",
        "odd",
        "none",
        "long",
    ],
)
def test_show_prints_a_body_as_it_is_best_read(url, body, kind, shown):
    (id,) = put(url, any_letter(GROUP, 41, body=body))
    text = dead_letters("show", id, "--store", url).stdout
    assert f"{kind}\n" in text
    assert shown in text.split(f", {kind}\n")[1]
    assert "\x1b" not in text


def test_show_tells_the_error_and_the_origin(url):
    letter = any_letter(
        GROUP,
        41,
        partition_key="H[bold]1",
        properties={"kind": "door"},
        error="ValueError: first\nsecond \x1b[31m[/red]",
    )
    (id,) = put(url, letter)
    lines = dead_letters("show", id, "--store", url).stdout.splitlines()
    rows = {line[:15].strip(): line[15:] for line in lines[:12]}
    assert (rows["id"], rows["group"]) == (id, "homes.local/sensors/alerts")
    assert (rows["partition"], rows["sequence"]) == ("7", "41 (offset 4100)")
    assert (rows["partition key"], rows["properties"]) == ("H[bold]1", '{"kind": "door"}')
    assert (rows["error"], rows[""]) == ("ValueError: first", r"second \x1b[31m[/red]")
    assert rows["died"].endswith(" UTC, 5 attempts")
    assert rows["redriven"] == "no"


def test_show_as_json_has_the_whole_body(url):
    text, binary = put(
        url, any_letter(GROUP, 0, body=b"t\0xt"), any_letter(GROUP, 1, body=b"\xff" * 5000)
    )
    assert (
        json.loads(dead_letters("show", text, "--store", url, "--json").stdout)["body"] == "t\0xt"
    )
    shown = json.loads(dead_letters("show", binary, "--store", url, "--json").stdout)
    assert base64.b64decode(shown["body_base64"]) == b"\xff" * 5000


def test_redrive_sends_letters_back_and_marks_them(url, hub):
    ids = put(url, *(any_letter(GROUP, n, partition="1", body=b"%d" % n) for n in range(4)))
    said = dead_letters("redrive", ids[2], ids[0], "--store", url, "--hub", hub).stdout
    assert said == "sent 2 dead letters back to homes.local/sensors\n"
    assert bodies(hub, "1") == [b"0", b"2"]
    assert left(url, redriven=False) == [1, 3]
    done = dead_letters("redrive", "--all", "--store", url, "--hub", hub, "--json")
    assert json.loads(done.stdout) == {"redriven": 2, "failed": []}
    assert bodies(hub, "1") == [b"0", b"2", b"1", b"3"]
    assert left(url, redriven=False) == []
    with Hub.open(hub) as opened:
        event = opened.read_batch("1", Checkpoint(next_sequence=0), 1).events[0]
    assert event.properties[REDRIVEN_FROM] == "homes.local/sensors/alerts/1/0"
    assert dead_letters("redrive", "--all", "--store", url, "--hub", hub).stdout.startswith(
        "sent 0"
    )


def test_redrive_of_a_group_leaves_other_groups_alone(url, hub):
    put(url, *some(2), any_letter(replace(GROUP, name="activity"), 9, partition="1"))
    dead_letters("redrive", "--all", "--group", "activity", "--store", url, "--hub", hub)
    assert left(url, redriven=False) == [0, 1]


def test_what_was_redriven_is_not_sent_again_unless_forced(url, hub):
    ids = put(url, *some(2))
    dead_letters("redrive", ids[0], "--store", url, "--hub", hub)
    text = refused("redrive", *ids, "--store", url, "--hub", hub)
    assert f"{ids[0]} was redriven before" in text
    assert len(bodies(hub, "1")) == 1
    dead_letters("redrive", *ids, "--store", url, "--hub", hub, "--force")
    assert len(bodies(hub, "1")) == 3


def test_letters_of_another_hub_are_refused_before_anything_is_sent(url, hub):
    stranger = any_letter(replace(GROUP, feed="cameras"), 9, partition="1")
    ids = put(url, *some(2), stranger)
    for words in (("--all",), ids):
        text = refused("redrive", *words, "--store", url, "--hub", hub)
        assert "1 dead letter came from elsewhere, such as homes.local/cameras" in text
    assert bodies(hub, "1") == []
    dead_letters("redrive", "--all", "--store", url, "--hub", hub, "--force")
    assert len(bodies(hub, "1")) == 3


def test_a_letter_that_cannot_be_sent_stays_and_is_told(url, hub):
    bad = any_letter(GROUP, 7, partition="99")
    put(url, *some(1), bad, any_letter(GROUP, 8, partition="1"))
    done = dead_letters("redrive", "--all", "--store", url, "--hub", hub, "--json", ok=False)
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["redriven"] == 2
    assert [row["id"] for row in answer["failed"]] == [bad.id]
    assert f"{bad.id} stays: BadInput: " in done.stderr
    assert left(url, redriven=False) == [7]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give their ids, or --all"),
        (("abc", "--all"), "give their ids, or --all"),
        (("abc", "--group", "alerts"), "--group goes with --all"),
        (("abc",), "there is no dead letter abc"),
    ],
)
def test_a_redrive_of_nothing_in_particular_is_refused(url, hub, words, says):
    put(url, *some(1))
    assert says in refused("redrive", *words, "--store", url, "--hub", hub)


def test_a_hub_that_is_not_there_is_not_made_by_a_redrive(url, tmp_path):
    put(url, *some(1))
    path = tmp_path / "typo.db"
    assert "no hub" in refused("redrive", "--all", "--store", url, "--hub", path)
    assert not path.exists()


def test_purge_asks_and_does_nothing_without_a_yes(url):
    put(url, *some(3))
    for answer in ("n\n", ""):
        done = dead_letters("purge", "--group", "alerts", "--store", url, stdin=answer, ok=False)
        assert done.returncode == 1
        question = "purge 3 dead letters of homes.local/sensors/alerts, 3 of them not redriven"
        assert question in done.stderr
        assert "nothing was purged" in done.stderr
        assert left(url) == [0, 1, 2]
    done = dead_letters("purge", "--group", "alerts", "--store", url, stdin="y\n")
    assert done.stdout == "purged 3 dead letters\n"
    assert left(url) == []


def test_purge_takes_only_what_all_options_select(url, hub):
    ids = put(url, *some(3), any_letter(replace(GROUP, name="activity"), 9, partition="1"))
    dead_letters("redrive", ids[1], ids[3], "--store", url, "--hub", hub)

    def purge(*words):
        done = dead_letters("purge", *words, "--store", url, "--yes", "--json")
        return json.loads(done.stdout)["purged"]

    assert purge("--older-than", "1h") == 0
    assert purge("--group", "nobody") == 0
    assert purge("--group", "alerts", "--redriven-only") == 1
    assert left(url) == [0, 2, 9]
    assert purge(ids[0]) == 1
    assert left(url) == [2, 9]
    assert purge("--older-than", "0s", "--redriven-only") == 1
    assert left(url) == [2]
    assert purge("--all") == 1
    assert left(url) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "say which dead letters"),
        (("--all", "--group", "alerts"), "say which dead letters"),
        (("--older-than", "7 days"), "'7 days': give a number and a unit"),
        (("--older-than", "-1d"), "give a number and a unit"),
        (("--older-than", "99999999999999w"), "older_than_s"),
        (("abc",), "there is no dead letter abc"),
    ],
)
def test_a_purge_of_nothing_in_particular_is_refused(url, words, says):
    put(url, *some(1))
    assert says in refused("purge", *words, "--store", url, "--yes")
    assert left(url) == [0]


def test_letters_that_come_while_the_question_is_open_are_kept(url):
    put(url, *some(2))
    asking = subprocess.Popen(
        [*PROGRAM, "dead-letters", "purge", "--all", "--store", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    asked = b""
    while b"[y/N]" not in asked:
        asked += os.read(asking.stderr.fileno(), 1000)
    put(url, any_letter(GROUP, 50))
    out, _ = asking.communicate(b"y\n", timeout=60)
    assert out == b"purged 2 dead letters\n"
    assert left(url) == [50]


def test_a_terminal_is_shown_a_bar(url, hub):
    put(url, *some(30))
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "dead-letters", "redrive", "--all", "--store", url, "--hub", str(hub)],
        stdout=subprocess.PIPE,
        stderr=follower,
    ) as running:
        os.close(follower)
        out = running.stdout.read()
        shown = b""
        try:
            while part := os.read(leader, 10_000):
                shown += part
        except OSError:  # the other end was closed
            pass
        os.close(leader)
    assert running.returncode == 0
    assert out == b"sent 30 dead letters back to homes.local/sensors\n"
    assert b"redriving" in shown
    assert b"30/30" in shown


@pytest.mark.parametrize(
    ("url", "says"),
    [("redis://here", "no dead letters are kept in redis://"), ("dead.db", "sqlite:///dead.db")],
)
def test_a_wrong_store_url_gets_one_clear_line(url, says):
    assert says in refused("list", "--store", url)


def test_a_file_that_is_no_store_gets_one_clear_line(tmp_path):
    path = tmp_path / "dead.db"
    path.write_bytes(b"something else entirely " * 100)
    assert "is no intact SQLite file" in refused("list", "--store", f"sqlite:///{path}")
