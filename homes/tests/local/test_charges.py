"""What the web process knows of the request units that Cosmos DB charges."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from homes.local import charges
from homes.local.charges import ChargeFile, read_charges
from homes.web.operations import Operations


def test_what_each_process_was_charged_lately_is_shown_per_second(tmp_path: Path) -> None:
    now, shared, own = 1000.0, Counter(read=100.0), Counter[str]()
    charged = [*(SimpleNamespace(request_units=each) for each in (shared, shared, own)), object()]
    writer = ChargeFile(tmp_path / "charges" / "alerts.json", charged, lambda: now)
    now += 4
    shared.update(read=10.0, write=50.0)  # type: ignore[arg-type]
    own.update(renew=1.0, write=2.0)  # type: ignore[arg-type]
    writer.write()
    now += 4
    expected = {"read": 2.5, "write": 13.0, "renew": 0.2}
    assert read_charges(tmp_path / "charges", lambda: now)["alerts"]["per_s"] == expected
    operations = Operations([], charges=lambda: read_charges(tmp_path / "charges", lambda: now))
    asyncio.run(operations.look())
    assert operations.as_dict()["request_units_per_s"] == {"alerts": expected}
    writer.write()
    idle = {"read": 0.0, "write": 0.0, "renew": 0.0}
    assert read_charges(tmp_path / "charges", lambda: now)["alerts"]["per_s"] == idle
    assert read_charges(tmp_path / "charges", lambda: now + 200) == {}


def test_who_is_charged_nothing_writes_nothing(tmp_path: Path) -> None:
    asyncio.run(ChargeFile(tmp_path / "one.json", [object()]).keep_writing())
    assert not list(tmp_path.iterdir())


def test_it_goes_on_writing_until_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charges, "EVERY_S", 0.01)
    units = Counter[str]()
    path = tmp_path / "one.json"

    async def main() -> None:
        file = ChargeFile(path, [SimpleNamespace(request_units=units)])
        writing = asyncio.ensure_future(file.keep_writing())
        while not path.exists() or "read" not in json.loads(path.read_text())["per_s"]:
            units.update(read=1.0)  # type: ignore[arg-type]
            await asyncio.sleep(0.01)
        writing.cancel()

    asyncio.run(main())


ODD = ["[]", "7", '{"at_ms": 1e999, "per_s": {}}', '{"at_ms": 1000000, "per_s": {"read": "nan"}}']
ODD += ['{"at_ms": 1000000, "per_s": {"read": 1e999}}', '{"at_ms": 1000000, "per_s": [1]}']
ODD += [f'{{"at_ms": 1{"0" * 400}, "per_s": {{}}}}', '{"at_ms": 1', ""]


@pytest.mark.parametrize("text", ODD)
def test_what_makes_no_sense_is_not_shown_and_ends_no_watch(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    assert read_charges(tmp_path, lambda: 1000.0) == {}
