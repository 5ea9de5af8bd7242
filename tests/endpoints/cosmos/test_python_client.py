"""Azure's own Python client, plain and asynchronous, against the endpoint."""

import asyncio
import time
from datetime import UTC, datetime

import pytest
from azure.core import MatchConditions
from azure.cosmos import CosmosClient, PartitionKey, ThroughputProperties, exceptions
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient
from azure.cosmos.partition_key import NonePartitionKeyValue, NullPartitionKeyValue
from support.cosmos import serving

HOMES = [f"H{n:03}" for n in range(40)]


def fill(container, homes=HOMES, **fields):
    for place, home in enumerate(homes):
        container.upsert_item({"id": f"a-{home}", "home_id": home, "level": place % 7, **fields})


def ids(items):
    return [each["id"] for each in items]


def split_all(served, container, times=1):
    inner = served.container("homes", container.id)
    for _ in range(times):
        for each in inner.ranges():
            if not each.split:
                inner.split(each.id)


def test_items_are_created_read_replaced_and_deleted(alerts):
    made = alerts.create_item(
        {"id": "a", "home_id": "H1", "level": 3, "é世": [1, None, {"x": 1.5}]}
    )
    assert made["é世"] == [1, None, {"x": 1.5}]
    assert alerts.read_item("a", "H1") == made
    made["level"] = 4
    assert alerts.replace_item("a", made)["level"] == 4
    with pytest.raises(exceptions.CosmosResourceExistsError):
        alerts.create_item({"id": "a", "home_id": "H1"})
    alerts.delete_item("a", "H1")
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        alerts.read_item("a", "H1")
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        alerts.replace_item("a", {"id": "a", "home_id": "H1"})


def test_ids_that_are_too_long_are_refused_as_azure_does(client, alerts):
    with pytest.raises(exceptions.CosmosHttpResponseError, match="less than '1024' characters"):
        alerts.create_item({"id": "x" * 1024, "home_id": "H1"})
    with pytest.raises(exceptions.CosmosHttpResponseError, match="less than '255' characters"):
        client.create_database("x" * 256)


def test_a_key_may_be_of_any_type_or_missing(alerts):
    keys = ["7", 7, 7.5, True, False, None]
    for key in keys:
        alerts.create_item({"id": "a", "home_id": key, "is": str(key)})
    alerts.create_item({"id": "a", "is": "missing"})
    for key in keys[:-1]:
        assert alerts.read_item("a", key)["is"] == str(key)
    assert alerts.read_item("a", NullPartitionKeyValue)["is"] == "None"
    assert alerts.read_item("a", NonePartitionKeyValue)["is"] == "missing"
    assert len(list(alerts.read_all_items())) == 7


def test_writes_that_depend_on_an_etag_are_refused_once_it_has_changed(alerts):
    old = alerts.create_item({"id": "a", "home_id": "H1"})
    when = {"etag": old["_etag"], "match_condition": MatchConditions.IfNotModified}
    alerts.replace_item("a", {"id": "a", "home_id": "H1", "n": 1}, **when)
    for write in (
        lambda: alerts.replace_item("a", {"id": "a", "home_id": "H1", "n": 2}, **when),
        lambda: alerts.upsert_item({"id": "a", "home_id": "H1", "n": 2}, **when),
        lambda: alerts.delete_item("a", "H1", **when),
        lambda: alerts.patch_item("a", "H1", [{"op": "set", "path": "/n", "value": 2}], **when),
    ):
        with pytest.raises(exceptions.CosmosAccessConditionFailedError):
            write()
    assert alerts.read_item("a", "H1")["n"] == 1


def test_patches_reach_into_documents_and_hold_to_their_condition(alerts):
    alerts.create_item({"id": "a", "home_id": "H1", "n": 1, "in": {"list": [1, 2]}})
    operations = [
        {"op": "incr", "path": "/n", "value": 4},
        {"op": "add", "path": "/in/list/-", "value": 3},
        {"op": "set", "path": "/in/new", "value": {"x": 1}},
        {"op": "remove", "path": "/in/list/0"},
        {"op": "move", "from": "/in/new", "path": "/moved"},
    ]
    done = alerts.patch_item("a", "H1", operations, filter_predicate="from c where c.n = 1")
    assert (done["n"], done["in"], done["moved"]) == (5, {"list": [2, 3]}, {"x": 1})
    with pytest.raises(exceptions.CosmosAccessConditionFailedError):
        alerts.patch_item("a", "H1", operations, filter_predicate="from c where c.n = 1")
    for path in ("/id", "/home_id", "/nothing/there"):
        with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
            alerts.patch_item("a", "H1", [{"op": "replace", "path": path, "value": 1}])
        assert refused.value.status_code == 400


def test_a_batch_is_all_or_nothing(alerts):
    def batch(*operations):
        return alerts.execute_item_batch([*operations], "H1")

    first = batch(
        ("create", ({"id": "a", "home_id": "H1"},)),
        ("upsert", ({"id": "b", "home_id": "H1", "n": 1},)),
        ("patch", ("b", [{"op": "incr", "path": "/n", "value": 1}])),
        ("read", ("a",)),
    )
    assert [each["statusCode"] for each in first] == [201, 201, 200, 200]
    with pytest.raises(exceptions.CosmosBatchOperationError) as failed:
        batch(
            ("delete", ("a",)),
            ("create", ({"id": "b", "home_id": "H1"},)),
            ("delete", ("b",)),
        )
    codes = [each["statusCode"] for each in failed.value.operation_responses]
    assert codes == [424, 409, 424]
    assert sorted(ids(alerts.read_all_items())) == ["a", "b"]
    assert alerts.read_item("b", "H1")["n"] == 2


@pytest.mark.parametrize("splits", [0, 1, 2])
def test_queries_give_the_same_answer_however_many_ranges_there_are(served, alerts, splits):
    fill(alerts)
    split_all(served, alerts, splits)

    def asked(text, **parameters):
        given = [{"name": f"@{name}", "value": value} for name, value in parameters.items()]
        return list(
            alerts.query_items(
                text, parameters=given, enable_cross_partition_query=True, max_item_count=6
            )
        )

    assert sorted(ids(asked("SELECT * FROM c"))) == [f"a-{home}" for home in HOMES]
    assert asked("SELECT VALUE COUNT(1) FROM c WHERE c.level = @n", n=3) == [6]
    assert asked("SELECT VALUE SUM(c.level) FROM c") == [sum(n % 7 for n in range(40))]
    ordered = [f"a-{home}" for home in reversed(HOMES)]
    assert ids(asked("SELECT * FROM c ORDER BY c.id DESC")) == ordered
    assert ids(asked("SELECT TOP 5 c.id FROM c ORDER BY c.id DESC")) == ordered[:5]
    assert ids(asked("SELECT * FROM c ORDER BY c.id DESC OFFSET 7 LIMIT 9")) == ordered[7:16]
    assert sorted(asked("SELECT DISTINCT VALUE c.level FROM c")) == list(range(7))
    found = asked("SELECT VALUE c.id FROM c WHERE STARTSWITH(c.id, @p)", p="a-H01")
    assert sorted(found) == [f"a-{home}" for home in HOMES[10:20]]


@pytest.mark.parametrize("splits", [0, 2])
def test_each_range_is_asked_by_a_plan_as_other_clients_do(served, alerts, splits):
    """What has to be put together, the client gets a plan for, and asks range by range."""
    fill(alerts)
    split_all(served, alerts, splits)
    whole = {"query": "SELECT c.id FROM c WHERE c.level < 4 ORDER BY c.id"}
    path = f"dbs/homes/colls/{alerts.id}/docs"
    headers = {"x-ms-documentdb-isquery": "true", "content-type": "application/query+json"}
    headers["x-ms-documentdb-query-enablecrosspartition"] = "true"
    status, known, error = served.ask("POST", path, whole, headers)
    assert (status, known["x-ms-substatus"]) == (400, "1004")
    assert "additionalErrorInfo" in error
    plan_header = {"x-ms-cosmos-is-query-plan-request": "True"} | headers
    status, _, plan = served.ask("POST", path, whole, plan_header)
    assert plan["queryInfo"]["orderBy"] == ["Ascending"]
    rewritten = plan["queryInfo"]["rewrittenQuery"]
    rewritten = rewritten.replace("{documentdb-formattableorderbyquery-filter}", "true")
    _, _, ranges = served.ask("GET", f"dbs/homes/colls/{alerts.id}/pkranges")
    payloads = []
    for each in ranges["PartitionKeyRanges"]:
        one = headers | {"x-ms-documentdb-partitionkeyrangeid": each["id"]}
        _, _, page = served.ask("POST", path, {"query": rewritten}, one)
        items = [found["orderByItems"][0]["item"] for found in page["Documents"]]
        assert items == sorted(items)
        payloads += [found["payload"] for found in page["Documents"]]
    assert len(ranges["PartitionKeyRanges"]) == 2**splits
    wanted = [f"a-{home}" for place, home in enumerate(HOMES) if place % 7 < 4]
    assert sorted(ids(payloads)) == wanted


def test_a_plan_does_not_make_clients_look_up_the_ranges_again(served, alerts):
    fill(alerts)

    def ask():
        list(alerts.query_items("SELECT * FROM c ORDER BY c.id", enable_cross_partition_query=True))
        return alerts.client_connection._routing_map_provider._collection_routing_map_by_item

    known = dict(ask())
    assert known.keys() & {f"dbs/homes/colls/{alerts.id}"}
    assert ask() == known


def test_a_query_over_all_keys_has_to_be_enabled(alerts):
    fill(alerts)
    for text in ("SELECT * FROM c", "SELECT * FROM c WHERE c.home_id = 'H001' OR true"):
        with pytest.raises(exceptions.CosmosHttpResponseError, match="required but disabled"):
            list(alerts.query_items(text))
    with pytest.raises(exceptions.CosmosHttpResponseError, match="required but disabled"):
        list(alerts.query_conflicts("SELECT * FROM c"))
    one = f"SELECT * FROM c WHERE c.level >= 0 AND c.home_id = '{HOMES[1]}' ORDER BY c.id"
    assert ids(alerts.query_items(one)) == [f"a-{HOMES[1]}"]


def test_a_page_has_documents_of_one_range_only(served, alerts):
    fill(alerts)
    split_all(served, alerts, 2)
    path, got = f"dbs/homes/colls/{alerts.id}/docs", []
    headers = {"x-ms-documentdb-isquery": "true", "content-type": "application/query+json"}
    headers["x-ms-documentdb-query-enablecrosspartition"] = "true"
    while True:
        _, known, page = served.ask("POST", path, {"query": "SELECT * FROM c"}, headers)
        got.append(ids(page["Documents"]))
        if "x-ms-continuation" not in known:
            break
        headers["x-ms-continuation"] = known["x-ms-continuation"]
    assert len(got) == 4
    assert sorted(id for page in got for id in page) == sorted(f"a-{home}" for home in HOMES)


def test_how_a_query_ran_is_told_to_those_who_ask(alerts):
    fill(alerts)
    found = alerts.query_items(
        "SELECT * FROM c WHERE c.level > 9",
        partition_key=HOMES[0],
        populate_query_metrics=True,
        populate_index_metrics=True,
    )
    assert list(found) == []
    headers = alerts.client_connection.last_response_headers
    told = dict(each.split("=") for each in headers["x-ms-documentdb-query-metrics"].split(";"))
    assert (told["retrievedDocumentCount"], told["outputDocumentCount"]) == ("1", "0")
    used = headers["x-ms-cosmos-index-utilization"]["UtilizedSingleIndexes"]
    assert [each["IndexSpec"] for each in used] == ["/home_id/?"]


def test_documents_of_a_key_are_counted_without_being_read(alerts):
    for n in range(7):
        alerts.create_item({"id": str(n), "home_id": f"H{n % 2}"})
    for text, wanted, read in (
        ("SELECT VALUE COUNT(1) FROM c", 4, 0),
        ("SELECT VALUE COUNT(c.id) FROM c", 4, 4),
        ("SELECT VALUE COUNT(c.none) FROM c", 0, 4),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.id > '2'", 2, 4),
    ):
        found = alerts.query_items(text, partition_key="H0", populate_query_metrics=True)
        assert list(found) == [wanted]
        told = alerts.client_connection.last_response_headers["x-ms-documentdb-query-metrics"]
        assert f"retrievedDocumentCount={read};" in told


def test_a_page_goes_on_behind_what_came_before_a_split(served, alerts):
    fill(alerts)
    pages = alerts.query_items(
        "SELECT * FROM c", enable_cross_partition_query=True, max_item_count=7
    ).by_page()
    got = ids(next(pages))
    split_all(served, alerts)
    token = pages.continuation_token
    again = alerts.query_items(
        "SELECT * FROM c", enable_cross_partition_query=True, max_item_count=7
    ).by_page(token)
    for page in again:
        got += ids(page)
    assert sorted(got) == sorted(f"a-{home}" for home in HOMES)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SELECT c.x, COUNT(1) FROM c GROUP BY c.x", "GROUP"),
        ("SELECT * FROM c JOIN d IN c.tags", "JOIN"),
        ("SELECT * FROM c WHERE c.id LIKE 'a%'", "LIKE"),
        ("SELECT * FROM c WHERE REGEXMATCH(c.id, 'a')", "REGEXMATCH"),
        ("SELECT * FROM c WHERE (SELECT VALUE 1)", "Subqueries"),
        ("SELECT * FROM c WHERE c.id = ", "end of the query"),
    ],
)
def test_what_a_query_asks_in_vain_is_named(alerts, text, named):
    with pytest.raises(exceptions.CosmosHttpResponseError, match=named) as refused:
        list(alerts.query_items(text, enable_cross_partition_query=True))
    assert refused.value.status_code == 400


def test_the_change_feed_has_each_newest_state_once_and_goes_on_from_its_continuation(alerts):
    fill(alerts)
    fill(alerts, HOMES[:5], again=True)
    pages = alerts.query_items_change_feed(start_time="Beginning", max_item_count=8).by_page()
    got = ids(next(pages))
    continuation = alerts.client_connection.last_response_headers["etag"]
    while True:
        page = ids(alerts.query_items_change_feed(continuation=continuation, max_item_count=8))
        continuation = alerts.client_connection.last_response_headers["etag"]
        if not page:
            break
        got += page
    assert sorted(got) == [f"a-{home}" for home in HOMES]
    assert got[-5:] == [f"a-{home}" for home in HOMES[:5]]


def test_a_continuation_outlives_splits(served, alerts):
    fill(alerts, HOMES[:20])
    first = alerts.query_items_change_feed(start_time="Beginning", max_item_count=7).by_page()
    got = ids(next(first))
    continuation = alerts.client_connection.last_response_headers["etag"]
    split_all(served, alerts, 2)
    fill(alerts, HOMES[20:])
    got += ids(alerts.query_items_change_feed(continuation=continuation))
    assert sorted(got) == [f"a-{home}" for home in HOMES]


def test_the_feed_ranges_of_keys_hold_what_their_keys_have(served, alerts):
    fill(alerts)
    split_all(served, alerts, 2)
    alerts.read_feed_ranges(force_refresh=True)
    for home in HOMES[:8]:
        one = alerts.feed_range_from_partition_key(home)
        found = alerts.query_items_change_feed(start_time="Beginning", feed_range=one)
        assert ids(found) == [f"a-{home}"]
        assert sum(alerts.is_feed_range_subset(r, one) for r in alerts.read_feed_ranges()) == 1


def test_all_versions_and_deletes_come_in_order(database, served):
    container = database.create_container("versions", PartitionKey("/home_id"))
    mode = {"mode": "AllVersionsAndDeletes"}
    assert list(container.query_items_change_feed(**mode)) == []
    continuation = container.client_connection.last_response_headers["etag"]
    container.create_item({"id": "a", "home_id": "H1", "n": 1})
    container.upsert_item({"id": "a", "home_id": "H1", "n": 2})
    container.delete_item("a", "H1")
    found = list(container.query_items_change_feed(continuation=continuation, **mode))
    kinds = [each["metadata"]["operationType"] for each in found]
    assert kinds == ["create", "replace", "delete"]
    assert [each["current"].get("n") for each in found] == [1, 2, None]
    assert found[2]["previous"]["n"] == 2
    assert found[2]["metadata"]["id"] == "a"
    assert found[2]["metadata"]["partitionKey"] == {"home_id": "H1"}
    lsns = [each["metadata"]["lsn"] for each in found]
    assert lsns == sorted(lsns)


def test_a_feed_begins_at_a_time_or_now(alerts):
    fill(alerts, HOMES[:3])
    time.sleep(1.1)
    middle = datetime.now(UTC)
    fill(alerts, HOMES[3:6])
    assert ids(alerts.query_items_change_feed(start_time=middle)) == [
        f"a-{home}" for home in HOMES[3:6]
    ]
    assert ids(alerts.query_items_change_feed(start_time="Now")) == []


def test_hierarchical_keys_are_found_whole_and_by_their_beginning(database, served):
    container = database.create_container("sites", PartitionKey(["/city", "/home"]))
    for city in ("Bonn", "Köln"):
        for home in range(10):
            container.create_item({"id": f"{city}-{home}", "city": city, "home": home})
    split_all(served, container)
    assert container.read_item("Köln-3", ["Köln", 3])["home"] == 3
    of_bonn = container.query_items("SELECT * FROM c", partition_key=["Bonn"])
    assert sorted(ids(of_bonn)) == [f"Bonn-{home}" for home in range(10)]
    with pytest.raises(exceptions.CosmosHttpResponseError, match="required but disabled"):
        list(container.query_items("SELECT * FROM c", partition_key=[]))
    one = container.feed_range_from_partition_key(["Bonn"])
    changes = container.query_items_change_feed(start_time="Beginning", feed_range=one)
    assert len(list(changes)) == 10


def test_all_documents_of_a_key_can_be_deleted_at_once(alerts):
    for n in range(6):
        alerts.create_item({"id": str(n), "home_id": f"H{n % 2}"})
    alerts.delete_all_items_by_partition_key("H0")
    assert sorted(ids(alerts.read_all_items())) == ["1", "3", "5"]


def test_raising_the_throughput_splits(database):
    container = database.create_container("fast", PartitionKey("/k"), offer_throughput=12_000)
    assert len(list(container.read_feed_ranges())) == 2
    container.replace_throughput(40_000)
    assert container.get_throughput().offer_throughput == 40_000
    assert len(list(container.read_feed_ranges(force_refresh=True))) == 4


def test_autoscale_settings_are_kept_and_given_back(database):
    wish = ThroughputProperties(auto_scale_max_throughput=7000, auto_scale_increment_percent=0)
    container = database.create_container("scaled", PartitionKey("/k"), offer_throughput=wish)
    told = container.get_throughput()
    assert (told.auto_scale_max_throughput, told.auto_scale_increment_percent) == (7000, 0)
    more = ThroughputProperties(auto_scale_max_throughput=9000, auto_scale_increment_percent=20)
    container.replace_throughput(more)
    told = container.get_throughput()
    assert (told.auto_scale_max_throughput, told.auto_scale_increment_percent) == (9000, 20)
    few = ThroughputProperties(auto_scale_max_throughput=-200)
    with pytest.raises(exceptions.CosmosHttpResponseError, match=r"-200 is less .* 1000"):
        database.create_container("few", PartitionKey("/k"), offer_throughput=few)


def test_a_database_has_a_throughput_that_its_containers_share(tmp_path):
    with serving(tmp_path) as served, CosmosClient(served.url, served.key) as client:
        database = client.create_database("shared", offer_throughput=5000)
        database.replace_throughput(6000)
        database.create_container("c", PartitionKey("/k"))
        _, _, found = served.ask("GET", "offers")
        assert [each["resource"] for each in found["Offers"]] == [database.read()["_self"]]
        alone = client.create_database("alone").create_container("c", PartitionKey("/k"))
        assert alone.get_throughput().offer_throughput == 400
    with serving(tmp_path) as served, CosmosClient(served.url, served.key) as client:
        assert client.get_database_client("shared").get_throughput().offer_throughput == 6000


def test_a_container_tells_how_full_it_is(served, alerts):
    fill(alerts)
    split_all(served, alerts)
    told = alerts.read(populate_partition_key_range_statistics=True, populate_quota_info=True)
    assert sum(each["documentCount"] for each in told["statistics"]) == len(HOMES)
    usage = alerts.client_connection.last_response_headers["x-ms-resource-usage"]
    assert f"documentsCount={len(HOMES)}" in usage


def test_an_indexing_policy_is_given_back_as_azure_does(database):
    policy = {
        "includedPaths": [{"path": "/*", "indexes": [{"kind": "Hash", "dataType": "String"}]}],
        "excludedPaths": [{"path": "/x/*"}],
    }
    made = database.create_container("indexed", PartitionKey("/k"), indexing_policy=policy)
    shown = made.read()["indexingPolicy"]
    assert shown["includedPaths"] == [{"path": "/*"}]
    assert shown["excludedPaths"] == [{"path": "/x/*"}, {"path": '/"_etag"/?'}]


def test_a_key_s_path_may_have_names_with_slashes_and_commas(database, served):
    paths = ['/"a/b"/c', "/'d,e \"f\"'"]
    made = database.create_container("marks", PartitionKey(paths))
    made.create_item({"id": "1", "a/b": {"c": "x"}, 'd,e "f"': 7})
    assert made.read()["partitionKey"]["paths"] == paths
    assert made.read_item("1", ["x", 7])["id"] == "1"
    assert ids(made.query_items("SELECT * FROM c", partition_key=["x"])) == ["1"]
    with pytest.raises(exceptions.CosmosHttpResponseError, match="Too many partition key paths"):
        database.create_container("deep", PartitionKey(["/a", "/b", "/c", "/d"]))


def test_computed_properties_are_used_like_fields_and_not_shown(database, served):
    named = [{"name": "cp_kind", "query": "SELECT VALUE LOWER(c.kind) FROM c"}]
    made = database.create_container("computed", PartitionKey("/k"), computed_properties=named)
    for id, kind in (("1", "GLASS"), ("2", "Door"), ("3", "glass")):
        made.create_item({"id": id, "k": id, "kind": kind, "cp_kind": "its own is not used"})
    split_all(served, made)

    def asked(text):
        return list(made.query_items(text, enable_cross_partition_query=True))

    assert made.read()["computedProperties"] == named
    assert sorted(asked("SELECT VALUE c.id FROM c WHERE c.cp_kind = 'glass'")) == ["1", "3"]
    assert asked("SELECT VALUE c.cp_kind FROM c ORDER BY c.cp_kind")[0] == "door"
    assert {each["cp_kind"] for each in asked("SELECT * FROM c")} == {"its own is not used"}
    database.replace_container(made, PartitionKey("/k"))
    assert asked("SELECT VALUE c.id FROM c WHERE c.cp_kind = 'glass'") == []
    for wrong in ({"name": "x"}, [{"name": "x", "query": "SELECT * FROM c"}]):
        with pytest.raises(exceptions.CosmosHttpResponseError, match="inputs is invalid"):
            database.replace_container(made, PartitionKey("/k"), computed_properties=wrong)


def test_a_computed_property_that_is_called_like_the_key_is_not_the_key(database, served):
    named = [{"name": "k", "query": "SELECT VALUE LOWER(c.k) FROM c"}]
    made = database.create_container("shadowed", PartitionKey("/k"), computed_properties=named)
    for k in "aA":
        made.create_item({"id": k, "k": k})
    text = "SELECT VALUE c.id FROM c WHERE c.k = 'a'"
    asked = made.query_items(text, enable_cross_partition_query=True)
    assert sorted(asked) == ["A", "a"]
    assert list(made.query_items(text, partition_key="A")) == ["A"]
    docs, one = "dbs/homes/colls/shadowed/docs", {"x-ms-documentdb-isquery": "true"}
    status, _, error = served.ask("POST", docs, {"query": text}, one)
    assert (status, "Cross partition query" in error["message"]) == (400, True)
    for name in ("id", "_ts"):
        wrong = [named[0] | {"name": name}]
        with pytest.raises(exceptions.CosmosHttpResponseError, match="is called"):
            database.replace_container(made, PartitionKey("/k"), computed_properties=wrong)


def test_the_time_to_live_of_a_container_can_be_changed(database):
    made = database.create_container("aging", PartitionKey("/k"))
    made.create_item({"id": "short", "k": 1, "ttl": 1})
    made.create_item({"id": "long", "k": 1})
    time.sleep(1.1)
    assert len(list(made.read_all_items())) == 2
    database.replace_container(made, PartitionKey("/k"), default_ttl=60)
    assert made.read()["defaultTtl"] == 60
    time.sleep(1.1)
    assert ids(made.read_all_items()) == ["long"]


def test_what_was_created_is_there_after_a_restart(tmp_path):
    with serving(tmp_path) as served, CosmosClient(served.url, served.key) as client:
        database = client.create_database("a name with spaces é")
        made = database.create_container("c-1", PartitionKey("/k"), default_ttl=60)
        made.create_item({"id": "a", "k": 1})
        rid = made.read()["_rid"]
    with serving(tmp_path) as served, CosmosClient(served.url, served.key) as client:
        again = client.get_database_client("a name with spaces é").get_container_client("c-1")
        assert (again.read()["_rid"], again.read()["defaultTtl"]) == (rid, 60)
        assert again.read_item("a", 1)["id"] == "a"
        client.delete_database("a name with spaces é")
        assert list(client.list_databases()) == []


def test_the_asynchronous_client_does_the_same(served):
    async def work():
        async with AsyncCosmosClient(served.url, served.key) as client:
            database = await client.create_database_if_not_exists("homes")
            container = await database.create_container("aio", PartitionKey("/home_id"))
            await asyncio.gather(
                *(container.upsert_item({"id": f"a-{h}", "home_id": h}) for h in HOMES)
            )
            inner = served.container("homes", "aio")
            inner.split("0")
            feed = container.query_items_change_feed(start_time="Beginning")
            changes = [each["id"] async for each in feed]
            query = container.query_items("SELECT VALUE COUNT(1) FROM c")
            counts = [each async for each in query]
            one = await container.read_item("a-H003", "H003")
            return changes, counts, one

    changes, counts, one = asyncio.run(work())
    assert sorted(changes) == [f"a-{home}" for home in HOMES]
    assert sum(counts) == 40
    assert one["home_id"] == "H003"


def test_too_many_request_units_are_answered_with_429_and_clients_wait(tmp_path):
    with (
        serving(tmp_path, request_units_s=15) as served,
        CosmosClient(served.url, served.key) as client,
    ):
        container = client.create_database("d").create_container("c", PartitionKey("/k"))
        for n in range(12):
            container.create_item({"id": str(n), "k": n})
        assert served.endpoint.throttled > 0
        assert len(list(container.read_all_items())) == 12
