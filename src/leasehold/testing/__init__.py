"""For tests of adapters and handlers: the rules that every adapter must keep, a network that fails,
and virtual time."""

from leasehold.testing.check_dead_letters import check_dead_letters
from leasehold.testing.check_feed import FeedUnderTest, check_feed
from leasehold.testing.check_lease_store import check_lease_store
from leasehold.testing.check_sender import SenderUnderTest, check_sender
from leasehold.testing.check_sink import check_sink
from leasehold.testing.check_split import SplitFeedUnderTest, check_split
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sim_time import SimClock, run_virtual
from leasehold.testing.trial import GivenEvents, Trial, try_handler

__all__ = [
    "Faults",
    "FaultyStore",
    "FeedUnderTest",
    "GivenEvents",
    "SenderUnderTest",
    "SimClock",
    "SplitFeedUnderTest",
    "Trial",
    "check_dead_letters",
    "check_feed",
    "check_lease_store",
    "check_sender",
    "check_sink",
    "check_split",
    "run_virtual",
    "try_handler",
]
