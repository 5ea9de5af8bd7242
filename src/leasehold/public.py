"""What ``leasehold`` exports. A new name goes into the imports and into ``__all__``."""

from leasehold.core import strict_json
from leasehold.core.balance import by_count, by_weight
from leasehold.core.change import Change
from leasehold.core.event import Event, EventData
from leasehold.core.model import Checkpoint, Group, Lease, Member, Ownership, Partition, Snapshot
from leasehold.errors import (
    BadInput,
    CallCancelled,
    CheckpointMissing,
    DeadLettersHeld,
    DocumentConflict,
    FeedUnavailable,
    HandlerHung,
    InstanceReplaced,
    LeaseholdError,
    LeaseLost,
    LetterRefused,
    MissingExtra,
    PositionGone,
    ReadHung,
    SinkUnavailable,
    StaleBatch,
    StoreUnavailable,
)
from leasehold.feeds import open_container, open_feed, open_sender
from leasehold.feeds.arrow_events import ArrowEvents
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub
from leasehold.feeds.keys import partition_of
from leasehold.log_lines import OneLine
from leasehold.operations.estimator import Estimate, Estimator
from leasehold.operations.lag_metrics import LagMetrics
from leasehold.operations.redrive import redrive, to_hub
from leasehold.ports import (
    DeadLetter,
    DeadLetters,
    Documents,
    Feed,
    FileBacked,
    LeaseStore,
    LetterFilter,
    Measure,
    Sender,
    Sink,
    SinkBatch,
    SinkMark,
    SinkRewind,
    Telemetry,
    error_text,
)
from leasehold.processor.changefeed import ChangeFeedProcessor
from leasehold.processor.handlers import Context
from leasehold.processor.letters import letter_for
from leasehold.processor.processor import Processor
from leasehold.settings import Retry, every, manual
from leasehold.sinks import open_sink
from leasehold.stores import open_azure_container, open_dead_letters, open_store
from leasehold.telemetry.health import Health
from leasehold.telemetry.prometheus import Registry, serve_metrics

__all__ = [
    "ArrowEvents",
    "BadInput",
    "CallCancelled",
    "Change",
    "ChangeFeedProcessor",
    "Checkpoint",
    "CheckpointMissing",
    "Container",
    "Context",
    "DeadLetter",
    "DeadLetters",
    "DeadLettersHeld",
    "DocumentConflict",
    "Documents",
    "Estimate",
    "Estimator",
    "Event",
    "EventData",
    "Feed",
    "FeedUnavailable",
    "FileBacked",
    "Group",
    "HandlerHung",
    "Health",
    "Hub",
    "InstanceReplaced",
    "LagMetrics",
    "Lease",
    "LeaseLost",
    "LeaseStore",
    "LeaseholdError",
    "LetterFilter",
    "LetterRefused",
    "Measure",
    "Member",
    "MissingExtra",
    "OneLine",
    "Ownership",
    "Partition",
    "PositionGone",
    "Processor",
    "ReadHung",
    "Registry",
    "Retry",
    "Sender",
    "Sink",
    "SinkBatch",
    "SinkMark",
    "SinkRewind",
    "SinkUnavailable",
    "Snapshot",
    "StaleBatch",
    "StoreUnavailable",
    "Telemetry",
    "by_count",
    "by_weight",
    "error_text",
    "every",
    "letter_for",
    "manual",
    "open_azure_container",
    "open_container",
    "open_dead_letters",
    "open_feed",
    "open_sender",
    "open_sink",
    "open_store",
    "partition_of",
    "redrive",
    "serve_metrics",
    "strict_json",
    "to_hub",
]
