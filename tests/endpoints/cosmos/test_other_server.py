"""``@vercel/cosmosdb-server``, which others made: what both servers have, they answer alike. It has
one range, and no ``OFFSET``, batches or change feeds."""

import subprocess
from pathlib import Path

import pytest
from azure.core import MatchConditions
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError

ROOT = Path(__file__).parents[3]
MODULES = ROOT / ".tools" / "cosmos-js" / "node_modules"
SCRIPT = """
const { createHttpServer } = require(process.argv[1] + "/@vercel/cosmosdb-server");
const server = createHttpServer();
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit(0)).resume();
"""
DOCUMENTS = [
    {"id": "a", "k": "H1", "n": 3, "kind": "motion", "tags": ["x", "y"], "at": {"room": "hall"}},
    {"id": "b", "k": "H1", "n": 1, "kind": "glass", "tags": [], "at": {"room": "kitchen"}},
    {"id": "c", "k": "H1", "n": 2, "kind": "co", "text": "ä ß"},
    {"id": "d", "k": "H1", "n": 1.5, "kind": "motion", "gone": None},
    {"id": "e", "k": "H1", "n": -4, "kind": "door", "open": True},
    {"id": "f", "k": "H1", "kind": "window", "open": False},
]
QUERIES = [
    "SELECT * FROM c",
    "SELECT * FROM c WHERE c.id = 'b'",
    "SELECT c.id, c.n FROM c WHERE c.n > 1 ORDER BY c.n",
    "SELECT c.id FROM c WHERE c.n >= @low AND c.n < @high ORDER BY c.n DESC",
    "SELECT VALUE c.id FROM c WHERE c.kind IN ('motion', 'co') ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE c.n BETWEEN 1 AND 2 ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE STARTSWITH(c.kind, 'mo') ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE CONTAINS(c.kind, 'o') OR ENDSWITH(c.kind, 's') ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE ARRAY_CONTAINS(c.tags, 'x') ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE ARRAY_CONTAINS(@ids, c.id) ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE IS_DEFINED(c.open) AND NOT c.open ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE IS_NULL(c.gone) ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE c.at.room = 'hall' ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE c.n = '1' ORDER BY c.id",
    "SELECT VALUE c.id FROM c WHERE c.missing != 1 ORDER BY c.id",
    "SELECT TOP 2 c.id FROM c ORDER BY c.id DESC",
    "SELECT VALUE COUNT(1) FROM c WHERE c.kind = 'motion'",
    "SELECT VALUE {\"id\": c.id, \"twice\": c.n * 2} FROM c WHERE c.n > 1 ORDER BY c.id",
    "SELECT VALUE UPPER(c.text) FROM c WHERE IS_STRING(c.text)",
]  # fmt: skip
VALUES = [
    {"name": "@low", "value": 1},
    {"name": "@high", "value": 3},
    {"name": "@ids", "value": ["a", "e", "zz"]},
]


@pytest.fixture(scope="module")
def others():
    """A container on each server, with the same documents."""
    assert (MODULES / "@vercel" / "cosmosdb-server").exists(), "make .tools/cosmos-js.ready"
    node = ROOT / ".tools" / "bin" / "node"
    with subprocess.Popen(
        [node, "-e", SCRIPT, MODULES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        port = process.stdout.readline().strip()
        client = CosmosClient(
            f"http://127.0.0.1:{port}", "c2VjcmV0", enable_endpoint_discovery=False
        )
        database = client.create_database("others")
        container = database.create_container("c", PartitionKey("/k"))
        for each in DOCUMENTS:
            container.create_item(each)
        yield container
        client.close()
        process.stdin.close()
        process.wait(30)


@pytest.fixture(scope="module")
def ours(client):
    container = client.create_database("others").create_container("c", PartitionKey("/k"))
    for each in DOCUMENTS:
        container.create_item(each)
    return container


def plain(value):
    """Without what a server adds."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if not name.startswith("_")}
    return value


@pytest.mark.servers
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_the_same(others, ours, query):
    found = [
        [
            plain(each)
            for each in container.query_items(query, VALUES, enable_cross_partition_query=True)
        ]
        for container in (others, ours)
    ]
    assert found[1] == found[0]
    assert found[0] or "missing" in query or "'1'" in query


@pytest.mark.servers
def test_single_documents_are_treated_alike(others, ours):
    def story(container):
        said = []

        def ask(call, *arguments, **settings):
            try:
                said.append(plain(call(*arguments, **settings)))
            except CosmosHttpResponseError as error:
                said.append(error.status_code)

        ask(container.read_item, "a", "H1")
        ask(container.create_item, {"id": "a", "k": "H1"})
        ask(container.create_item, {"id": "a", "k": "H3", "n": 1})
        etag = container.read_item("a", "H3")["_etag"]
        ask(container.upsert_item, {"id": "a", "k": "H3", "n": 2})
        only = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        ask(container.replace_item, "a", {"id": "a", "k": "H3", "n": 3}, **only)
        ask(container.replace_item, "zz", {"id": "zz", "k": "H3"})
        ask(container.read_item, "a", "H3")
        ask(container.delete_item, "a", "H3")
        ask(container.delete_item, "a", "H3")
        return said

    theirs = story(others)
    assert story(ours) == theirs
    assert theirs.count(412) == 1
