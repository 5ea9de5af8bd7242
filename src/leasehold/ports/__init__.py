"""The seams to the outside world. Adapters implement these; everything above speaks only these."""

from leasehold.ports.clock import Clock
from leasehold.ports.columnar_feed import Chunk, ColumnarFeed, FeedColumns, TellsHistory
from leasehold.ports.dead_letters import (
    ERROR_CHARS_MAX,
    DeadLetter,
    DeadLetters,
    LetterFilter,
    error_text,
    reason_of,
    traced_text,
)
from leasehold.ports.documents import Documents
from leasehold.ports.feed import (
    Batch,
    CountsRemaining,
    Feed,
    FencesReaders,
    MirrorsCheckpoints,
    TellsEnds,
)
from leasehold.ports.lease_store import LeaseStore, Renewed
from leasehold.ports.sender import Appended, FileBacked, Sender
from leasehold.ports.sink import FeedHistory, Sink, SinkBatch, SinkMark, SinkRewind
from leasehold.ports.telemetry import Attributes, Measure, Telemetry

__all__ = [
    "ERROR_CHARS_MAX",
    "Appended",
    "Attributes",
    "Batch",
    "Chunk",
    "Clock",
    "ColumnarFeed",
    "CountsRemaining",
    "DeadLetter",
    "DeadLetters",
    "Documents",
    "Feed",
    "FeedColumns",
    "FeedHistory",
    "FencesReaders",
    "FileBacked",
    "LeaseStore",
    "LetterFilter",
    "Measure",
    "MirrorsCheckpoints",
    "Renewed",
    "Sender",
    "Sink",
    "SinkBatch",
    "SinkMark",
    "SinkRewind",
    "Telemetry",
    "TellsEnds",
    "TellsHistory",
    "error_text",
    "reason_of",
    "traced_text",
]
