"""Azure's JavaScript client: items, queries and the change feed over feed ranges."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = ROOT / ".tools" / "cosmos-js" / "node_modules"
SCRIPT = Path(__file__).with_name("client.mjs")


@pytest.mark.servers
def test_the_javascript_client_works_with_the_endpoint(served):
    assert (MODULES / "@azure" / "cosmos").exists(), "make .tools/cosmos-js.ready fetches it"
    environ = {
        **os.environ,
        "MODULES": f"{MODULES}/",
        "ENDPOINT": served.url,
        "KEY": served.key,
    }
    with subprocess.Popen(
        [ROOT / ".tools" / "bin" / "node", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as node:
        first = node.stdout.readline()
        assert first == "SPLIT\n", first + node.stderr.read()
        inner = served.container("homes", "javascript")
        for leaf in [each.id for each in inner.ranges() if not each.split]:
            inner.split(leaf)
        said, complained = node.communicate("go\n", timeout=60)
    assert node.returncode == 0, complained
    found = json.loads(said.splitlines()[-1])
    names = [f"a{n:02}" for n in range(29)]
    assert found["read"] == 3
    assert (found["patched"], found["conditional"]) == (103, True)
    assert (found["stale"], found["missing"]) == (412, 404)
    assert found["batch"] == [201, 201]
    assert found["count"] == [31]
    assert found["ordered"] == names[::-1]
    assert found["top"] == names[:3]
    assert found["skipped"] == names[2:5]
    assert found["where"] == ["a05"]
    assert (found["ofOneKey"], found["refused"], found["ranges"]) == (2, 400, 2)
    assert sorted(found["changes"]) == sorted([*names, "b1", "b2"])
    assert sorted(found["later"]) == ["later", "later too"]
