"""The page on Event Hubs: its script, against an endpoint that is started as the page says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from azure.eventhub import EventData, EventHubProducerClient
from support.amqp_endpoint import served_hub

PAGE = Path(__file__).parents[3] / "docs/how-to/event-hubs.md"


def test_the_script_of_the_page_prints_what_the_official_client_sends(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n# alerts.py\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "alerts.py").write_text(script)
    with served_hub(tmp_path) as served:
        with EventHubProducerClient.from_connection_string(served.connection_string) as client:
            client.send_batch([EventData(b"glass"), EventData(b"door")], partition_key="H000123")
        environment = {
            **os.environ,
            "AZURE_EVENTHUBS_CONNECTION_STRING": served.connection_string,
            "HUB": f"eventhubs://localhost:{served.port}/sensors",
        }
        with subprocess.Popen(
            [sys.executable, "alerts.py"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout
            lines = [running.stdout.readline().split(maxsplit=1)[1] for _ in range(2)]
            running.send_signal(signal.SIGINT)
            assert running.wait(60) in (0, -signal.SIGINT, 130)
    assert lines == ["0 H000123 b'glass'\n", "1 H000123 b'door'\n"]
