"""The query language, without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql import Running, parse
from leasehold.endpoints.cosmos.sql.plan import query_info
from leasehold.endpoints.cosmos.sql.run import Resume

DOCUMENTS = [
    {"id": "a", "n": 1, "s": "one", "tags": ["x", "y"], "in": {"deep": [1, {"z": True}]}},
    {"id": "b", "n": 2, "s": "Two", "tags": [], "gone": None},
    {"id": "c", "n": "2", "s": "three"},
    {"id": "d", "s": "four", "n": None},
    {"id": "e", "s": "five", "n": True},
    {"id": "f", "s": "six"},
]
PLACED = [((place, 0, each["id"]), each) for place, each in enumerate(DOCUMENTS)]


def run(text, resume=None, most=100, **parameters):
    given = [{"name": f"@{name}", "value": value} for name, value in parameters.items()]
    return list(Running(parse(text, given), resume, most).page(PLACED))


def values(text, **parameters):
    return [each.value for each in run(text, **parameters)]


def where(condition, **parameters):
    return "".join(values(f"SELECT VALUE c.id FROM c WHERE {condition}", **parameters))


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("c.n = 2", "b"),
        ("c.n = '2'", "c"),
        ("c.n != 2", "acde"),
        ("c.n <> null", "abce"),
        ("c.n = null", "d"),
        ("c.n > 1", "b"),
        ("c.n >= 1 AND c.n <= 2", "ab"),
        ("c.n BETWEEN 1 AND 2", "ab"),
        ("c.n NOT BETWEEN 1 AND 1", "b"),
        ("c.n < '3'", "c"),
        ("NOT (c.n = 2)", "acde"),
        ("NOT c.n", ""),
        ("c.n", "e"),
        ("c.n IN (1, '2', null)", "acd"),
        ("c.n NOT IN (1)", "bcde"),
        ("c.missing = c.missing", ""),
        ("c.missing = 1 OR c.n = 1", "a"),
        ("c.missing = 1 AND c.n = 1", ""),
        ("IS_DEFINED(c.n)", "abcde"),
        ("NOT IS_DEFINED(c.n)", "f"),
        ("IS_NULL(c.n)", "d"),
        ("IS_NUMBER(c.n) OR IS_BOOL(c.n)", "abe"),
        ("STARTSWITH(c.s, 't')", "c"),
        ("STARTSWITH(c.s, 'T', true)", "bc"),
        ("ENDSWITH(c.s, 'e') AND CONTAINS(c.s, 'hre')", "c"),
        ("STARTSWITH(c.n, '2')", "c"),
        ("ARRAY_CONTAINS(c.tags, 'y')", "a"),
        ("ARRAY_LENGTH(c.tags) = 0", "b"),
        ("c.tags = ['x', 'y']", "a"),
        ("c['in'].deep[1].z", "a"),
        ('c["in"]["deep"][0] + 1 = 2', "a"),
        ("c.n * 2 - 1 = 3", "b"),
        ("c.n % 2 = 1 AND c.n / 2 = 0.5 AND -c.n = -1", "a"),
        ("c.n / 0 = 1", ""),
        ("POWER(c.n, 3) = 8 AND SQUARE(c.n) = 4 AND SQRT(c.n * 2) = 2", "b"),
        ("IS_DEFINED(POWER(0 - c.n, 0.5)) OR IS_DEFINED(SQRT(c.s))", ""),
        ("c.s || '!' = 'one!'", "a"),
        ("LENGTH(c.s) = 3 AND LOWER(c.s) = 'two'", "b"),
        ("c.id = @id", "c"),
        ("c.id = 'a' -- a comment\n OR c.id = 'b'", "ab"),
        ("true", "abcdef"),
    ],
)
def test_conditions(condition, found):
    assert where(condition, id="c") == found


def test_projections():
    assert values("SELECT c.id, c.n AS number FROM c WHERE c.id = 'f'") == [{"id": "f"}]
    assert values("SELECT c.id, c.n + 1, c.s FROM c WHERE c.n = 1") == [
        {"id": "a", "$1": 2, "s": "one"}
    ]
    assert values("SELECT VALUE {'x': [c.id, c.no], y: c.n} FROM c WHERE c.n = 1") == [
        {"x": ["a"], "y": 1}
    ]
    assert values("SELECT * FROM root WHERE root.n = 1") == [DOCUMENTS[0]]
    assert values("select value r.s from root r where r.n = 1") == ["one"]
    assert repr(values("SELECT VALUE POWER(c.n, 2) FROM c WHERE c.id = 'b'")) == "[4]"
    assert values("SELECT VALUE c.n FROM c") == [1, 2, "2", None, True]
    assert (
        values("SELECT VALUE 'it''s'" if False else "SELECT VALUE 'it\\'s \\u00e9' FROM c")[0]
        == "it's é"
    )


def test_aggregates():
    assert values("SELECT VALUE COUNT(1) FROM c") == [6]
    assert values("SELECT VALUE COUNT(c.n) FROM c") == [5]
    assert values("SELECT VALUE SUM(c.n) FROM c WHERE IS_NUMBER(c.n)") == [3]
    assert values("SELECT VALUE SUM(c.n) FROM c") == []
    assert values("SELECT VALUE MIN(c.s) FROM c") == ["Two"]
    assert values("SELECT VALUE MAX(c.id) FROM c") == ["f"]
    assert values("SELECT VALUE AVG(c.n) FROM c WHERE c.n < 3") == [1.5]
    assert values("SELECT COUNT(1) AS all, MAX(c.id) AS last FROM c") == [{"all": 6, "last": "f"}]
    assert values("SELECT VALUE COUNT(1) FROM c WHERE false") == [0]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT VALUE 1e308 * 10 FROM c",
        "SELECT VALUE 1e308 * 10 - 1e308 * 10 FROM c",
        f"SELECT VALUE 1{'0' * 300} * 1{'0' * 300} FROM c",
        "SELECT VALUE SUM(1e308) FROM c",
        f"SELECT VALUE AVG(1{'0' * 308}) FROM c",
        "SELECT VALUE POWER(10, 400) FROM c",
    ],
)
def test_what_json_has_no_number_for_is_undefined(text):
    assert values(text) == []


@pytest.mark.parametrize("number", ["1e400", "1" * 400, "1" * 5000])
def test_a_number_that_is_too_large_is_refused(number):
    with pytest.raises(Refusal, match="too large"):
        parse(f"SELECT VALUE {number}")


def test_an_aggregate_is_one_result_however_it_is_sorted_or_limited():
    assert values("SELECT VALUE COUNT(1) FROM c ORDER BY c.n") == [6]
    assert query_info(parse("SELECT VALUE COUNT(1) FROM c ORDER BY c.n"))["orderBy"] == []
    assert values("SELECT VALUE COUNT(1) FROM c OFFSET 0 LIMIT 3") == [6]
    assert values("SELECT VALUE COUNT(1) FROM c OFFSET 1 LIMIT 3") == []
    assert values("SELECT TOP 0 VALUE COUNT(1) FROM c") == []


def test_order_is_by_type_and_then_by_value():
    assert values("SELECT VALUE c.id FROM c ORDER BY c.n") == list("fdeabc")
    assert values("SELECT VALUE c.id FROM c ORDER BY c.n DESC") == list("cbaedf")
    assert values("SELECT TOP 2 VALUE c.id FROM c ORDER BY c.s ASC") == ["b", "e"]
    assert values("SELECT VALUE c.id FROM c ORDER BY c.id DESC OFFSET 1 LIMIT 3") == list("edc")


def test_distinct_values_come_once():
    assert values("SELECT DISTINCT VALUE LENGTH(c.s) FROM c") == [3, 5, 4]
    assert values("SELECT DISTINCT VALUE LENGTH(c.s) FROM c ORDER BY LENGTH(c.s) DESC") == [5, 4, 3]
    assert values("SELECT DISTINCT TOP 2 VALUE LENGTH(c.s) FROM c") == [3, 5]
    assert query_info(parse("SELECT DISTINCT c.n FROM c"))["distinctType"] == "Unordered"
    assert query_info(parse("SELECT DISTINCT c.n FROM c ORDER BY c.n"))["distinctType"] == "Ordered"


@given(
    st.integers(1, 7),
    st.sampled_from(["", " ORDER BY c.n", " ORDER BY c.s DESC, c.id"]),
    st.sampled_from(["VALUE c.id", "VALUE c.tags", "VALUE c.n", "DISTINCT VALUE LENGTH(c.s)"]),
)
def test_pages_put_together_are_the_whole(most, order, what):
    text = f"SELECT {what} FROM c{order}"
    whole = [each.value for each in run(text)]
    got, resume = [], None
    while True:
        placed = PLACED
        if resume is not None and not order and "DISTINCT" not in what:
            placed = [each for each in PLACED if each[0] > resume.place]
        page = list(Running(parse(text), resume, most).page(placed))
        got += [each.value for each in page[:most]]
        if len(page) <= most:
            break
        last = page[most - 1]
        resume = Resume(last.place, last.order, len(got))
    assert got == whole


@pytest.mark.parametrize(
    "text",
    ["", "SELECT", "SELECT * FROM", "SELECT * FROM c WHERE", "SELECT c. FROM c", "SELECT * c",
     "SELECT * FROM c WHERE c.x = @unknown", "SELECT TOP -1 * FROM c", "SELECT * FROM c LIMIT 1",
     "SELECT * FROM c OFFSET 1", "SELECT * FROM a b c", "SELECT * FROM c.items",
     "SELECT * FROM c WHERE c.x == 1", "SELECT * FROM c;", "SELECT * FROM c WHERE COUNT(1) = 1",
     "SELECT VALUE c.id, c.n FROM c", "SELECT * FROM c ORDER c.n", "SELECT udf.f(c) FROM c",
     "SELECT * FROM c WHERE c.x ?? 1", "SELECT * FROM c WHERE c.x ? 1 : 2", "DELETE FROM c"],
)  # fmt: skip
def test_what_is_no_query_or_not_supported_is_refused(text):
    with pytest.raises(Refusal) as refused:
        parse(text)
    assert refused.value.status == 400
    assert str(refused.value)


def test_a_plan_tells_how_to_ask_each_range():
    info = query_info(parse("SELECT TOP 3 c.id, c.n FROM c WHERE c.n > 1 ORDER BY c.n DESC"))
    assert (info["orderBy"], info["top"]) == (["Descending"], 3)
    again = info["rewrittenQuery"].replace("{documentdb-formattableorderbyquery-filter}", "true")
    assert values(again) == [{"orderByItems": [{"item": 2}], "payload": {"id": "b", "n": 2}}]
    info = query_info(parse("SELECT TOP 2 VALUE c.tags FROM c ORDER BY c.s DESC"))
    again = info["rewrittenQuery"].replace("{documentdb-formattableorderbyquery-filter}", "true")
    assert [each["payload"] for each in values(again)] == [["x", "y"], []]
    average = query_info(parse("SELECT VALUE AVG(c.n) FROM c WHERE c.n < 9"))
    assert average["aggregates"] == ["Average"]
    assert values(average["rewrittenQuery"]) == [[{"item": {"sum": 3, "count": 2}}]]
    skipping = query_info(parse("SELECT * FROM c OFFSET 1 LIMIT 2"))
    assert (skipping["offset"], skipping["limit"]) == (1, 2)
    assert values(skipping["rewrittenQuery"]) == DOCUMENTS[:3]
    assert query_info(parse("SELECT * FROM c WHERE c.n = 1"))["rewrittenQuery"] == ""


def test_aggregates_that_clients_cannot_add_up_have_no_plan():
    for text in ("SELECT COUNT(1) FROM c", "SELECT VALUE {'n': COUNT(1)} FROM c"):
        with pytest.raises(Refusal, match="Across partitions"):
            query_info(parse(text))


def test_documents_without_a_result_take_no_place_on_a_page():
    assert values("SELECT VALUE c.tags FROM c ORDER BY c.s DESC") == [["x", "y"], []]
    assert values("SELECT TOP 2 VALUE c.tags FROM c ORDER BY c.s") == [[], ["x", "y"]]
    assert values("SELECT VALUE c.tags FROM c ORDER BY c.s OFFSET 1 LIMIT 1") == [["x", "y"]]
