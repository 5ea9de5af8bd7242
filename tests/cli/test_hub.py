import base64
import json
import signal
import subprocess
from datetime import datetime

import pytest
from support.command_line import PROGRAM, leasehold

from leasehold.feeds.hub import Hub


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sensors.db"
    Hub.create(path, name="sensors", namespace="homes.local", partitions=4).close()
    return path


def stored(path):
    """All bodies by partition, and all keys."""
    with Hub.open(path) as hub:
        batches = {
            number: hub.read_batch(number, hub.position_of(number, "earliest"), 100_000).events
            for number in hub.properties().partition_ids
        }
        return (
            {number: [event.body for event in events] for number, events in batches.items()},
            {event.partition_key for events in batches.values() for event in events},
        )


def fill(path, *bodies, partition=1):
    with Hub.open(path) as hub:
        hub.send_columns(["H1"] * len(bodies), bodies, partition_id=partition)


def refused(*words, stdin=b""):
    done = leasehold(*words, ok=False, stdin=stdin)
    assert done.returncode == 2
    assert "error: " in done.stderr
    return " ".join(done.stderr.split())


def test_a_hub_is_made_with_what_was_asked_for(tmp_path):
    path = tmp_path / "data" / "sensors.db"
    options = ("--partitions", 3, "--namespace", "homes.local", "--name", "readings")
    said = leasehold("hub", "create", path, *options, "--retention-s", 60).stdout
    assert "homes.local/readings" in said
    assert "3 partitions" in said
    with Hub.open(path) as hub:
        properties = hub.properties()
    assert (properties.namespace, properties.name) == ("homes.local", "readings")
    assert (len(properties.partitions), properties.retention_s) == (3, 60)


def test_a_hub_without_options_is_named_after_its_file(tmp_path):
    path = tmp_path / "sensors.db"
    made = json.loads(leasehold("hub", "create", path, "--json").stdout)
    assert (made["name"], made["namespace"], len(made["partitions"])) == ("sensors", "local", 16)


def test_a_hub_is_not_made_twice_and_a_wrong_setting_is_named(path, tmp_path):
    assert "exists already" in refused("hub", "create", path)
    assert "partitions is 0" in refused("hub", "create", tmp_path / "a.db", "--partitions", 0)
    assert "name 'a b'" in refused("hub", "create", tmp_path / "a b.db")
    assert not (tmp_path / "a.db").exists()


def test_arguments_are_sent_as_events_with_a_key(path):
    said = leasehold("hub", "send", path, "one", "[bold]two[/]", "", "--key", "H1").stdout
    assert "sent 3 events to partition" in said
    bodies, keys = stored(path)
    assert sorted(bodies.values(), key=len)[-1] == [b"one", b"[bold]two[/]", b""]
    assert keys == {"H1"}


def test_events_go_to_the_partition_that_was_named(path):
    sent = json.loads(leasehold("hub", "send", path, "a", "b", "--partition", 2, "--json").stdout)
    assert sent == {"events": 2, "partitions": {"2": {"first_sequence": 0, "events": 2}}}
    assert stored(path)[0]["2"] == [b"a", b"b"]


def test_lines_of_a_file_are_spread_by_a_field_in_order(path, tmp_path):
    rows = [{"home": f"H{n % 50}", "n": n} for n in range(3000)]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    leasehold("hub", "send", path, "--file", file, "--key-field", "home")
    bodies, keys = stored(path)
    assert keys == {f"H{n}" for n in range(50)}
    parsed = {number: [json.loads(body) for body in found] for number, found in bodies.items()}
    assert sorted(row["n"] for rows in parsed.values() for row in rows) == list(range(3000))
    for found in parsed.values():
        assert [row["n"] for row in found] == sorted(row["n"] for row in found)
    homes = [{row["home"] for row in found} for found in parsed.values()]
    assert sum(map(len, homes)) == 50


def test_lines_of_standard_input_are_sent_as_they_are_without_empty_ones(path):
    leasehold("hub", "send", path, "--partition", 0, stdin=b"plain\r\n\n\xff\x00 \n  last")
    assert stored(path)[0]["0"] == [b"plain", b"\xff\x00 ", b"  last"]


def test_lines_without_a_key_go_to_the_partitions_in_turn(path):
    lines = "".join(f"{n}\n" for n in range(4000))
    leasehold("hub", "send", path, "--file", "-", stdin=lines)
    assert [len(found) for found in stored(path)[0].values()] == [1000] * 4


def test_no_input_sends_nothing(path):
    assert leasehold("hub", "send", path).stdout == "sent 0 events\n"


def test_a_wrong_line_is_named_and_so_is_what_was_sent_before(path):
    lines = "".join(json.dumps({"home": n}) + "\n" for n in range(20_010)) + '{"house": 1}\n'
    text = refused("hub", "send", path, "--key-field", "home", stdin=lines)
    assert "20,000 events had been sent, all up to line 20,000" in text
    assert "line 20,011 is no JSON object with a text or a whole number as 'home'" in text
    assert sum(map(len, stored(path)[0].values())) == 20_000


def test_an_event_too_large_for_the_hub_is_named_by_its_line(tmp_path):
    path = tmp_path / "small.db"
    Hub.create(path, name="h", namespace="n", partitions=1, batch_bytes_max=100).close()
    text = refused("hub", "send", path, stdin=b"fits\n" + b"x" * 101 + b"\n")
    assert "line 2 has more than the 100 bytes" in text
    assert "0 events had been sent" in text
    assert "batch_bytes_max" in refused("hub", "send", path, stdin=b"x" * 95)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("x", "--key", "a", "--partition", "1"), "--key and --partition contradict each other"),
        (("x", "--partition", "9"), "partition 9 is unknown"),
        (("x", "--file", "f"), "not both"),
        (("--file", "/no/such/file"), "/no/such/file cannot be read: No such file"),
        (("[red]", "--key-field", "a"), "an event is no JSON object"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_one_line(path, words, says):
    assert says in refused("hub", "send", path, *words)
    assert not any(stored(path)[0].values())


def test_reading_prints_events_from_a_start_on(path):
    fill(path, b"one", b"two\x1b[31m", b"thr[bold]ee")
    everything = [json.loads(line) for line in read(path, "--json")]
    assert [event["body"] for event in everything] == ["one", "two\x1b[31m", "thr[bold]ee"]
    assert [event["sequence"] for event in everything] == [0, 1, 2]
    assert {event["partition_key"] for event in everything} == {"H1"}
    assert datetime.fromisoformat(everything[0]["enqueued_at"]).tzinfo is not None
    lines = read(path, "--partition", 1, "--from", "sequence:1")
    assert [line.split("  ")[-1] for line in lines] == [r"two\x1b[31m", "thr[bold]ee"]
    assert lines[0].startswith("1/1  ")
    offset = everything[2]["offset"]
    assert len(read(path, "--partition", 1, "--from", f"offset:{offset}")) == 1
    assert len(read(path, "--from", "time:2020-01-01T00:00:00Z", "--max", 2)) == 2


def read(path, *words):
    return leasehold("hub", "read", path, *words).stdout.splitlines()


def test_a_body_that_is_no_text_is_given_as_base64(path):
    fill(path, b"\xff\x01")
    (line,) = read(path, "--json")
    assert base64.b64decode(json.loads(line)["body_base64"]) == b"\xff\x01"
    assert read(path)[0].endswith(r"\xff\x01")


def test_reading_gives_all_events_when_told_so(path):
    fill(path, *[b"x"] * 2500)
    assert len(read(path)) == 100
    assert len(read(path, "--max", 0)) == 2500


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "sequence:5", "--partition", "1"), "sequence 5 is beyond the end"),
        (("--from", "noon"), "start 'noon' is not one of"),
        (("--partition", "x"), "partition 'x' is unknown"),
    ],
)
def test_a_start_or_partition_that_is_not_there_is_refused(path, words, says):
    assert says in refused("hub", "read", path, *words)


def test_info_shows_what_every_partition_holds(path):
    fill(path, *[b"x" * 50] * 20, partition=2)
    shown = leasehold("hub", "info", path).stdout
    assert "homes.local/sensors" in shown
    assert "20 in 4 partitions" in shown
    row = next(line for line in shown.splitlines() if line.startswith("│         2 "))
    assert [cell.strip() for cell in row.split("│")][2:5] == ["0", "19", "20"]
    info = json.loads(leasehold("hub", "info", path, "--json").stdout)
    two = info["partitions"][2]
    assert (two["first_sequence"], two["last_sequence"], two["events"]) == (0, 19, 20)
    assert two["body_bytes"] == 1000
    assert 0 < two["stored_bytes"] < 1000
    assert datetime.fromisoformat(two["last_enqueued_at"]).tzinfo is not None
    assert info["partitions"][0]["last_enqueued_at"] is None
    assert info["file_bytes"] > 0


@pytest.mark.parametrize("command", ["send", "read", "info"])
def test_a_hub_that_is_not_there_is_not_made_by_accident(tmp_path, command):
    path = tmp_path / "[typo].db"
    text = refused("hub", command, path)
    assert f"there is no hub at {path}" in text
    assert "leasehold hub create" in text
    assert not path.exists()


def test_a_reader_that_had_enough_ends_the_reading_quietly(path):
    fill(path, *[b"x" * 200] * 5000)
    done = subprocess.Popen(
        [*PROGRAM, "hub", "read", str(path), "--max", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert done.stdout.readline()
    done.stdout.close()
    assert done.wait(60) != 0
    assert b"Traceback" not in done.stderr.read()
    done.stderr.close()


def test_ctrl_c_while_sending_says_what_was_sent(path):
    sending = subprocess.Popen(
        [*PROGRAM, "hub", "send", str(path), "--partition", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    sending.stdin.write(b"x\n" * 20_001)
    sending.stdin.flush()
    with Hub.open(path) as hub:
        while hub.partition_properties(0).events < 20_000:
            assert sending.poll() is None
    sending.send_signal(signal.SIGINT)
    _, said = sending.communicate(timeout=60)
    assert sending.returncode == 130
    assert b"20,001 events had been sent" in said
    assert b"Traceback" not in said
