import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import BadInput, DocumentConflict
from leasehold.feeds.container import Container
from leasehold.feeds.container.documents import (
    DEPTH_MAX,
    ID_BYTES_MAX,
    KEY_BYTES_MAX,
    DocumentRules,
    hash_of,
    join_path,
    parse_path,
    parse_paths,
)

RULES = DocumentRules("/key", 100_000, None)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=10,
)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.fixture
def stored(container: Container) -> dict[str, Any]:
    return container.insert({"id": "a", "home_id": "H1", "kind": "smoke", "level": 3})


def test_a_document_comes_back_with_its_system_fields(container: Container) -> None:
    document = {"id": "a", "home_id": "H1", "n": [1, 2.5, None, True, {"é": "世\u0000"}]}
    stored = container.insert(document)
    assert stored.keys() - document.keys() == {"_etag", "_ts", "_lsn"}
    assert {name: stored[name] for name in document} == document
    assert container.read("a", "H1") == stored
    assert stored["_lsn"] == 1


@given(value=JSON_VALUES)
def test_whatever_json_can_say_is_stored_as_it_is(value: Any) -> None:
    new = RULES.prepare({"id": "a", "key": "k", "value": value})
    body = json.loads(new.with_system_fields("e", 5, 7))
    assert body == {"id": "a", "key": "k", "value": value, "_etag": "e", "_ts": 5, "_lsn": 7}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"key": "k"}, "needs an id"),
        ({"id": "", "key": "k"}, "needs an id"),
        ({"id": 7, "key": "k"}, "needs an id"),
        ({"id": "i" * (ID_BYTES_MAX + 1), "key": "k"}, "has more than"),
        ({"id": "\ud800", "key": "k"}, "not Unicode"),
        ({"id": "a"}, "'a' has no partition key: it lacks /key"),
        ({"id": "a", "key": None}, "has no partition key"),
        ({"id": "a", "key": 1.5}, "text or a whole number"),
        ({"id": "a", "key": True}, "text or a whole number"),
        ({"id": "a", "key": {"b": 1}}, "text or a whole number"),
        ({"id": "a", "key": 1 << 63}, "too large"),
        ({"id": "a", "key": "k" * (KEY_BYTES_MAX + 1)}, "has more than"),
        ({"id": "a", "key": "k", "x": math.nan}, "'a': x is nan"),
        ({"id": "a", "key": "k", "x": [{"y": math.inf}]}, r"x\[0\]\.y is inf"),
        ({"id": "a", "key": "k", "x": b"bytes"}, "x is a bytes"),
        ({"id": "a", "key": "k", "x": {1, 2}}, "x is a set"),
        ({"id": "a", "key": "k", "x": (1, object())}, r"x\[1\] is a object"),
        ({"id": "a", "key": "k", "x": {1: 2}}, "x has a field that is named 1"),
        ({"id": "a", "key": "k", 5: 2}, "has a field that is named 5"),
        ({"id": "a", "key": "k", "x": nested(DEPTH_MAX + 1)}, "levels deep"),
        ({"id": "a", "key": "k", "x": nested(100_000)}, "levels deep"),
        ({"id": "a", "key": "k", "x": cyclic()}, "levels deep"),
        ({"id": "a", "key": "k", "x": "\udfff"}, "cannot be written as JSON"),
        ({"id": "a", "key": "k", "x": 10**5000}, "cannot be written as JSON"),
        ({"id": "a", "key": "k", "x": "é" * 50_000}, "takes 1000.. bytes; document_bytes_max is"),
        (["id", "a"], "a document is a JSON object"),
        ("text", "a document is a JSON object"),
        (None, "a document is a JSON object"),
    ],
)
def test_what_is_no_document_is_refused_with_its_place(document: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        RULES.prepare(document)


def test_a_refused_document_changes_nothing(container: Container) -> None:
    with pytest.raises(BadInput):
        container.upsert_many([{"id": "a", "home_id": "H1"}, {"id": "b"}])
    assert container.properties().documents == 0
    assert container.properties().next_lsn == 1


def test_a_document_may_be_as_deep_and_as_large_as_the_bounds() -> None:
    deepest = {"id": "a", "key": "k", "x": nested(DEPTH_MAX)}
    assert json.loads(RULES.prepare(deepest).text + "}") == deepest
    empty = len(json.dumps({"id": "a", "key": "k", "x": ""}, separators=(",", ":")))
    RULES.prepare({"id": "a", "key": "k", "x": "x" * (100_000 - empty)})
    with pytest.raises(BadInput, match="takes 100001 bytes"):
        RULES.prepare({"id": "a", "key": "k", "x": "x" * (100_001 - empty)})


@pytest.mark.parametrize("path", ["", "home", "/", "//", "/a//b", "/_etag", None, 7])
def test_a_path_that_leads_nowhere_is_refused(path: Any) -> None:
    with pytest.raises(BadInput, match="partition key path"):
        parse_path(path)


@pytest.mark.parametrize(
    "names", [("a/b",), ("a,b", "c"), ('d"/e',), ("f'", "g,h"), ("plain", "i j"), ('"', "k")]
)
def test_a_path_is_read_as_it_was_written(names: tuple[str, ...]) -> None:
    assert parse_path(join_path(names)) == names
    assert parse_paths(f"{join_path(names)},/other") == (names, ("other",))


def test_a_name_that_cannot_be_quoted_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        join_path(["a/b'c\"d"])


def test_a_partition_key_may_lie_deeper() -> None:
    rules = DocumentRules("/home/id", 1000, None)
    assert rules.prepare({"id": "a", "home": {"id": "H1"}}).key == "H1"
    for home in ({}, "H1", None, ["id"]):
        with pytest.raises(BadInput, match="lacks /home/id"):
            rules.prepare({"id": "a", "home": home})


def test_the_hash_of_a_key_is_fixed_for_ever() -> None:
    keys = ("H000123", "", "é世", 7)
    hashes = {key: f"{hash_of(key, 'fnv1a'):08x}" for key in keys}
    assert hashes == {"H000123": "ec3d1b28", "": "ba992926", "é世": "fb522d15", 7: "f52ba797"}
    assert hash_of(7, "fnv1a") == hash_of("7", "fnv1a")
    effective = {key: f"{hash_of(key, 'effective'):08x}" for key in keys}
    assert effective == {"H000123": "3fd86e74", "": "cba4d9b9", "é世": "1460b758", 7: "dbb2ebc3"}


def test_a_number_and_its_text_are_two_keys(container: Container) -> None:
    container.insert({"id": "a", "home_id": 7, "is": "number"})
    container.insert({"id": "a", "home_id": "7", "is": "text"})
    number, text = container.read("a", 7), container.read("a", "7")
    assert number is not None
    assert text is not None
    assert (number["is"], text["is"]) == ("number", "text")
    assert [document["is"] for document in container.list(7)] == ["number"]


@pytest.mark.parametrize(
    "name", ["a/b", "../x", "'; DROP TABLE documents", "é 世", "\n", "%", "a" * 99]
)
def test_ids_and_keys_may_have_any_characters(container: Container, name: str) -> None:
    stored = container.insert({"id": name, "home_id": name})
    assert container.read(name, name) == stored
    assert container.list(name) == [stored]
    page = container.changes(container.range_of(name))
    assert [change.document for change in page.changes] == [stored]
    assert container.delete(name, name)


def test_system_fields_that_were_read_are_not_stored_again(
    container: Container, stored: dict[str, Any]
) -> None:
    again = container.upsert(stored | {"_lsn": 999, "level": 4})
    assert again["_lsn"] == 2
    assert again["_etag"] != stored["_etag"]
    assert container.read("a", "H1") == again


def test_an_insert_of_what_exists_is_refused(container: Container, stored: dict[str, Any]) -> None:
    with pytest.raises(DocumentConflict, match="exists already") as caught:
        container.insert({"id": "a", "home_id": "H1"})
    assert (caught.value.id, caught.value.reason) == ("a", "exists")
    assert container.read("a", "H1") == stored
    assert container.insert({"id": "a", "home_id": "H2"})["_lsn"] == 2


def test_a_replace_needs_something_to_replace(container: Container, stored: dict[str, Any]) -> None:
    assert container.replace({"id": "a", "home_id": "H1"})["_lsn"] == 2
    assert "kind" not in (container.read("a", "H1") or {})
    with pytest.raises(DocumentConflict) as caught:
        container.replace({"id": "b", "home_id": "H1"})
    assert caught.value.reason == "missing"


WRITES: dict[str, Callable[[Container, str], Any]] = {
    "upsert": lambda c, etag: c.upsert({"id": "a", "home_id": "H1"}, if_match=etag),
    "replace": lambda c, etag: c.replace({"id": "a", "home_id": "H1"}, if_match=etag),
    "patch": lambda c, etag: c.patch("a", "H1", {"level": 9}, if_match=etag),
    "delete": lambda c, etag: c.delete("a", "H1", if_match=etag),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_stale_etag_is_refused_and_nothing_is_written(
    container: Container, stored: dict[str, Any], write: Callable[[Container, str], Any]
) -> None:
    newer = container.patch("a", "H1", {"level": 5})
    with pytest.raises(DocumentConflict, match="read it again") as caught:
        write(container, stored["_etag"])
    assert caught.value.reason == "changed"
    assert container.read("a", "H1") == newer
    assert container.properties().next_lsn == 3
    write(container, newer["_etag"])
    assert container.properties().next_lsn == 4
    container.delete("a", "H1")
    with pytest.raises(DocumentConflict) as caught:
        write(container, newer["_etag"])
    assert caught.value.reason == "missing"


def test_a_document_made_again_has_another_etag(
    container: Container, stored: dict[str, Any]
) -> None:
    container.delete("a", "H1")
    assert container.insert({"id": "a", "home_id": "H1"})["_etag"] != stored["_etag"]


def test_a_patch_sets_and_removes_top_level_fields_only(
    container: Container, stored: dict[str, Any]
) -> None:
    patched = container.patch("a", "H1", {"level": None, "new": {"x": 1}}, remove=["kind"])
    assert {n: patched[n] for n in patched if n[0] != "_"} == {
        "id": "a",
        "home_id": "H1",
        "level": None,
        "new": {"x": 1},
    }
    assert container.patch("a", "H1", {"new": {"y": 2}})["new"] == {"y": 2}


@pytest.mark.parametrize(
    ("fields", "remove"),
    [({"id": "b"}, ()), ({"home_id": "H2"}, ()), ({}, ["id"]), ({}, ["home_id"]), ({"x": b""}, ())],
)
def test_a_patch_cannot_make_it_another_document(
    container: Container, stored: dict[str, Any], fields: dict[str, Any], remove: list[str]
) -> None:
    with pytest.raises(BadInput):
        container.patch("a", "H1", fields, remove=remove)
    assert container.read("a", "H1") == stored


def test_documents_of_a_key_are_listed_by_id_in_pages(container: Container) -> None:
    container.upsert_many(
        {"id": f"{number:02}", "home_id": home} for number in range(25) for home in ("H1", "H2")
    )
    found: list[str] = []
    while page := container.list("H1", max_items=10, after=found[-1] if found else ""):
        assert len(page) <= 10
        assert {document["home_id"] for document in page} == {"H1"}
        found += [document["id"] for document in page]
    assert found == [f"{number:02}" for number in range(25)]
    assert container.list("H3") == []
    with pytest.raises(BadInput, match="max_items"):
        container.list("H1", max_items=0)


def test_what_is_not_there_is_said_without_an_error(container: Container) -> None:
    assert container.read("a", "H1") is None
    assert container.delete("a", "H1") is False
    assert container.properties().next_lsn == 1


def test_a_conflict_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(DocumentConflict("text", id="a", reason="changed")))
    assert (str(error), error.id, error.reason) == ("text", "a", "changed")


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "a/b"},
        {"name": ""},
        {"name": "alerts.all"},
        {"namespace": "home security"},
        {"partition_key": "home_id"},
        {"ranges": 0},
        {"ranges": 1001},
        {"document_bytes_max": 0},
        {"ttl_s": 0},
        {"ttl_s": math.nan},
        {"versions_s": -1},
        {"split_documents": 0},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_by_name(
    tmp_path: Any, settings: dict[str, Any]
) -> None:
    wanted = {"name": "n", "namespace": "n", "partition_key": "/k"} | settings
    what = {"partition_key": "partition key"}.get(*settings, *settings)
    with pytest.raises(BadInput, match=what):
        Container.create(tmp_path / "x.db", **wanted)
    assert not list(tmp_path.iterdir())
