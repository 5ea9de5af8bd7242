from pathlib import Path

from benchmarks.eventhubs import DIRECT, run


def test_every_way_in_and_out_is_measured(tmp_path: Path) -> None:
    rows = {row.what: row for row in run(events=2_000, folder=tmp_path, servers=False)}
    assert list(rows) == [
        "in, the file, written directly",
        "in, azure-eventhub (Python)",
        "in, @azure/event-hubs (JavaScript)",
        "in, our feed",
        f"out, {DIRECT}",
        "out, azure-eventhub (Python, aio)",
        "out, @azure/event-hubs (JavaScript)",
        "out, our feed, a Processor",
        "out, our feed, columns over AMQP",
    ]
    assert all(row.value > 0 for row in rows.values())
    assert list(tmp_path.iterdir()) == []
