"""Whether a hub has what the sensors of a town have sent: each reading, and nothing else."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from application import HOMES, wait_for
from support.blocking import result_of

import leasehold as lh
from homes.local.places import Places
from homes.simulator.flaws import Flaws
from homes.simulator.sensors import Sensors
from homes.supervisor.data_folder import prepare

HOURS = 0.1


@dataclass(frozen=True)
class SentReadings:
    folder: Path
    flaws: Flaws
    began: float
    """Where the history ended that all began with."""

    @classmethod
    def begin(cls, folder: Path, flaws: Flaws) -> SentReadings:
        """Make the hub, with a history that ends at a time that is known."""
        prepare(Places(folder))
        began = float(int(time.time()))
        with (
            lh.Hub.open(Places(folder).hub) as hub,
            Sensors(hub, homes=HOMES, flaws=flaws) as homes,
        ):
            homes.backfill(HOURS, began)
        return cls(folder, flaws, began)

    def before_ms(self) -> int:
        """All readings before this time of the sensors' clock are in the hub."""
        return int(json.loads((self.folder / "sensors.db.sensors.json").read_text())["next_ms"])

    def wait_until(self, ms: int) -> None:
        wait_for(lambda: self.before_ms() >= ms, "the sensors to send")

    def require_all(self, *, kills: int = 0, running: bool = True) -> None:
        """Each reading at least once, nothing else, and at most a batch per kill once more."""
        since_ms, found = self.before_ms(), list(self._events())
        if running:
            self.wait_until(since_ms + 1)  # the batch that was under way
        least, most = self._expected(since_ms), self._expected(self.before_ms())
        bodies = Counter(event.body for event in found)
        assert bodies >= least
        assert bodies.keys() <= most.keys()
        ((_, largest_batch),) = Counter(event.enqueued_at for event in found).most_common(1)
        assert (bodies - most).total() <= kills * largest_batch

    def _events(self) -> Iterator[lh.Event]:
        """All that is in the hub; its positions are without a gap."""
        with lh.Hub.open(Places(self.folder).hub) as hub:
            for extent in result_of(hub.extents()):
                position, count = hub.position_of(extent.partition, "earliest"), 0
                while (batch := hub.read_batch(extent.partition, position, 10**6)).events:
                    for event in batch.events:
                        assert event.sequence == count
                        yield event
                        count += 1
                    position = batch.next
                assert count >= extent.end

    def _expected(self, until_ms: int) -> Counter[bytes]:
        """What sensors that nothing happened to have sent by then."""
        with (
            TemporaryDirectory() as folder,
            lh.Hub.create(Path(folder) / "o.db", name="o", namespace="o", partitions=1) as hub,
            Sensors(hub, homes=HOMES, flaws=self.flaws) as sensors,
        ):
            hours = HOURS + (until_ms / 1000 - self.began) / 3600
            sensors.backfill(hours, (until_ms + 0.5) / 1000)
            events = hub.read_batch("0", hub.position_of("0", "earliest"), 10**7).events
            assert len(events) == sensors.sent
            return Counter(event.body for event in events)
