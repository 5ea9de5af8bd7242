import json

import pytest
from support.command_line import leasehold

from leasehold.feeds.container import Container


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "alerts.db"
    with Container.create(
        path, name="alerts", namespace="homes.local", partition_key="/home_id", ranges=2
    ) as container:
        container.upsert_many({"id": f"a{n}", "home_id": f"H{n}"} for n in range(20))
    return path


def document(path, id, key):
    with Container.open(path) as container:
        return container.read(id, key)


def refused(*words, stdin=b""):
    done = leasehold("container", *words, ok=False, stdin=stdin)
    assert done.returncode == 2
    assert "error: " in done.stderr
    return " ".join(done.stderr.split())


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_container_is_made_with_what_was_asked_for(tmp_path):
    path = tmp_path / "data" / "alerts.db"
    options = ("--partition-key", "/home_id", "--ranges", 3, "--namespace", "homes", "--ttl-s", 60)
    more = ("--versions-s", -1, "--split-documents", 100, "--document-bytes-max", 5000)
    said = leasehold("container", "create", path, *options, *more).stdout
    assert "homes/alerts" in said
    assert "3 ranges" in said
    with Container.open(path) as container:
        made = container.properties()
    assert (made.name, made.namespace, made.key_path, len(made.ranges)) == (
        "alerts",
        "homes",
        "/home_id",
        3,
    )
    assert (made.ttl_s, made.versions_s, made.split_documents, made.document_bytes_max) == (
        60,
        None,
        100,
        5000,
    )


def test_a_container_is_not_made_twice_and_a_wrong_setting_is_named(path, tmp_path):
    assert "exists already" in refused("create", path, "--partition-key", "/k")
    other = tmp_path / "other.db"
    assert "write it like /home_id" in refused("create", other, "--partition-key", "home_id")
    assert "ranges is 0" in refused("create", other, "--partition-key", "/k", "--ranges", 0)
    assert "name 'a b'" in refused("create", other, "--partition-key", "/k", "--name", "a b")
    assert not other.exists()


def test_documents_are_put_from_arguments_and_got_back(path):
    text = '{"id": "[bold]x[/]", "home_id": "H1", "é": "世"}'
    (stored,) = rows(leasehold("container", "put", path, text, "--json").stdout)
    assert stored == document(path, "[bold]x[/]", "H1")
    got = leasehold("container", "get", path, "[bold]x[/]", "--key", "H1", "--json").stdout
    assert rows(got) == [stored]
    assert json.loads(leasehold("container", "get", path, "a2", "--key", "H2").stdout)["id"] == "a2"
    of_key = rows(leasehold("container", "get", path, "--key", "H1", "--json").stdout)
    assert [each["id"] for each in of_key] == ["[bold]x[/]", "a1"]


def test_documents_are_put_from_a_file_and_from_standard_input(path, tmp_path):
    lines = "\n\n".join(json.dumps({"id": f"n{n}", "home_id": "new"}) for n in range(2500))
    file = tmp_path / "in.jsonl"
    file.write_text(lines)
    said = leasehold("container", "put", path, "--file", file).stdout
    assert said == "stored 2,500 documents\n"
    leasehold("container", "put", path, stdin='{"id": "stdin", "home_id": "new"}\n')
    assert len(rows(leasehold("container", "get", path, "--key", "new", "--json").stdout)) == 2501


def test_a_bad_line_is_named_and_what_was_stored_before_is_said(path, tmp_path):
    file = tmp_path / "in.jsonl"
    good = [json.dumps({"id": f"n{n}", "home_id": "new"}) for n in range(1000)]
    file.write_text("\n".join([*good, '{"id": "x"']))
    said = refused("put", path, "--file", file)
    assert "1,000 documents had been stored" in said
    assert "line 1,001 is not JSON" in said
    assert "line 1 to line 2: document 'y' has no partition key" in refused(
        "put", path, stdin='{"id": "x", "home_id": "H"}\n{"id": "y"}'
    )
    assert document(path, "x", "H") is None
    assert "document 1 is not JSON" in refused("put", path, "{")
    assert "a document is a JSON object" in refused("put", path, "[1]")
    assert "is not JSON" in refused("put", path, "[" * 100_000)
    assert "cannot be read" in refused("put", path, "--file", tmp_path / "none")
    assert "not both" in refused("put", path, "{}", "--file", file)


def test_a_condition_holds_or_nothing_is_written(path):
    old = document(path, "a1", "H1")
    text = json.dumps({"id": "a1", "home_id": "H1", "x": 1})
    assert "another _etag" in refused("put", path, text, "--if-match", "stale")
    assert "one document at a time" in refused("put", path, text, text, "--if-match", "x")
    assert "another _etag" in refused("delete", path, "a1", "--key", "H1", "--if-match", "stale")
    assert document(path, "a1", "H1") == old
    leasehold("container", "put", path, text, "--if-match", old["_etag"])
    assert document(path, "a1", "H1")["x"] == 1


def test_what_is_not_there_ends_with_one(path):
    for words in (
        ("get", path, "none", "--key", "H1"),
        ("get", path, "--key", "none"),
        ("get", path, "a7", "--key", "7", "--number"),
        ("delete", path, "none", "--key", "H1"),
    ):
        done = leasehold("container", *words, ok=False)
        assert done.returncode == 1
        assert "there is no document" in done.stdout + done.stderr
    assert "not a whole number" in refused("get", path, "--key", "x", "--number")


def test_a_document_is_deleted(path):
    assert "deleted a1" in leasehold("container", "delete", path, "a1", "--key", "H1").stdout
    assert document(path, "a1", "H1") is None
    leasehold("container", "put", path, '{"id": "n", "home_id": 7}')
    words = ("container", "delete", path, "n", "--key", 7, "--number", "--json")
    assert json.loads(leasehold(*words).stdout) == {"deleted": True}


def test_changes_are_shown_and_can_be_continued_across_a_split(path):
    done = leasehold("container", "changes", path, "--max", 15, "--json")
    found = rows(done.stdout)
    assert len(found) == 15
    assert found[0].keys() == {
        "range",
        "lsn",
        "time",
        "partition_key",
        "operation",
        "expired",
        "document",
        "previous",
    }
    leasehold("container", "split", path, "0")
    leasehold("container", "split", path, "1")
    leasehold("container", "put", path, '{"id": "new", "home_id": "H1"}')
    words = done.stderr.split()
    assert words[::2] == ["--continuation"] * 2
    done = leasehold("container", "changes", path, *words, "--json")
    found += rows(done.stdout)
    ids = [each["document"]["id"] for each in found]
    assert sorted(ids) == sorted(["new", *(f"a{n}" for n in range(20))])
    assert len(done.stderr.split()[1::2]) == 4
    again = leasehold("container", "changes", path, *done.stderr.split())
    assert (again.stdout, again.stderr) == ("", done.stderr)


def test_all_versions_are_shown_on_request(path):
    leasehold("container", "put", path, '{"id": "a1", "home_id": "H1", "x": "\\u001b[31m"}')
    leasehold("container", "delete", path, "a1", "--key", "H1")
    text = leasehold("container", "changes", path, "--mode", "all", "--max", 0).stdout
    mine = [line.split("  ")[2] for line in text.splitlines() if '"a1"' in line]
    assert mine == ["insert", "replace", "delete"]
    assert "\u001b" not in text
    found = rows(
        leasehold("container", "changes", path, "--mode", "all", "--from", "now", "--json").stdout
    )
    assert found == []


def test_changes_of_one_range_only(path):
    words = ("container", "changes", path, "--range", "1", "--from", "beginning", "--json")
    found = rows(leasehold(*words).stdout)
    assert {each["range"] for each in found} == {"1"}


def test_what_changes_cannot_do_is_refused(path):
    assert "range '9' is unknown" in refused("changes", path, "--range", "9")
    assert "latest, all" in refused("changes", path, "--mode", "newest")
    assert "is not one of" in refused("changes", path, "--from", "yesterday")
    assert "not a continuation" in refused("changes", path, "--continuation", "x")
    assert "its range already" in refused("changes", path, "--continuation", "x", "--range", "0")
    other = f"{'0' * 16}-0:latest:0:1"
    assert "another container" in refused("changes", path, "--continuation", other)


def test_a_range_is_split_evenly_or_at_a_hash(path):
    assert "split range 0 into 2 (" in leasehold("container", "split", path, "0").stdout
    words = ("container", "split", path, "1", "--at", "c0000000", "--json")
    split = json.loads(leasehold(*words).stdout)
    assert split["range"] == "1"
    bounds = [(each["id"], each["low"], each["high"]) for each in split["children"]]
    assert bounds == [("4", "80000000", "bfffffff"), ("5", "c0000000", "ffffffff")]
    assert "split already" in refused("split", path, "1")
    assert "hexadecimal" in refused("split", path, "2", "--at", "xyz")
    assert "range 'x' is unknown" in refused("split", path, "x")


def test_info_shows_settings_and_ranges(path):
    leasehold("container", "split", path, "0")
    text = leasehold("container", "info", path).stdout
    for part in ("homes.local/alerts", "/home_id", "20 in 3 ranges", "kept for 86,400 s", "split"):
        assert part in text
    info = json.loads(leasehold("container", "info", path, "--json").stdout)
    assert (info["documents"], info["next_lsn"]) == (20, 21)
    assert [(each["id"], each["parent"], each["split"]) for each in info["ranges"]] == [
        ("0", None, True),
        ("1", None, False),
        ("2", "0", False),
        ("3", "0", False),
    ]


def test_a_missing_or_foreign_file_is_refused(tmp_path):
    assert "leasehold container create" in refused("info", tmp_path / "none.db")
    (tmp_path / "x.db").write_text("hello")
    assert "is not a container" in refused("info", tmp_path / "x.db")
