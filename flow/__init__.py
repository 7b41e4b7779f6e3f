"""Flow control: resources, limiters, the controllers that block and resume, and the map that shows who waits on whom.

Pure: no I/O, no threads, no clock of its own. Every time is a reading of the `clock` that was passed in, in monotonic
seconds.

    limiters    how much a resource may hold, and when it has too much
    resource    flows, and what they run through
    kinds       what kinds of resources there are
    source      what sends on, and whom it is blocked by
    account     what a flow holds, who must wait, who may go on
    controller  an account that takes elements in, and what happens to one that does not fit
    shares      the memory of all together, and who gives way when it is short
    upkeep      what is kept beside messages
    waiting     the line of those who wait, by priority
    manager     the registry, and the map of all that at one moment
    snapshot    that map as data
    graph       chains, bottlenecks and cycles in it
    words       sizes, ages and facts as people say them
    latch       one call back when each of several things has happened
    bounds      the number that stands for "no limit"
"""

from .account import Account
from .controller import FlowController
from .errors import (
    FlowClosedError,
    FlowError,
    NegativeAmountError,
    OverReleaseError,
    PairingError,
    RegistrationError,
    ThresholdError,
)
from .kinds import ResourceKind, Role
from .limiters import (
    Clock,
    CompositeLimiter,
    FlowLimiter,
    RateLimiter,
    SizeLimiter,
    WindowLimiter,
)
from .manager import FlowManager
from .residency import ResidencyLimiter
from .resource import Flow, FlowResource, FlowSink, FlowSource, WaitEdge
from .shares import MemoryBudget, Share
from .snapshot import (
    BlockCycle,
    BlockedByChain,
    BlockEdge,
    Bottleneck,
    ControllerSnapshot,
    Dimension,
    FlowSnapshot,
    LimiterSnapshot,
    ResourceSnapshot,
)
from .source import SourceController
from .upkeep import Upkeep, UpkeepAccount
from .words import age_in_words, count_in_words, facts_in_words, size_in_words

__all__ = [
    "Account",
    "BlockCycle",
    "BlockEdge",
    "BlockedByChain",
    "Bottleneck",
    "Clock",
    "CompositeLimiter",
    "ControllerSnapshot",
    "Dimension",
    "Flow",
    "FlowClosedError",
    "FlowController",
    "FlowError",
    "FlowLimiter",
    "FlowManager",
    "FlowResource",
    "FlowSink",
    "FlowSnapshot",
    "FlowSource",
    "LimiterSnapshot",
    "MemoryBudget",
    "NegativeAmountError",
    "OverReleaseError",
    "PairingError",
    "RateLimiter",
    "RegistrationError",
    "ResidencyLimiter",
    "ResourceKind",
    "ResourceSnapshot",
    "Role",
    "Share",
    "SizeLimiter",
    "SourceController",
    "ThresholdError",
    "Upkeep",
    "UpkeepAccount",
    "WaitEdge",
    "WindowLimiter",
    "age_in_words",
    "count_in_words",
    "facts_in_words",
    "size_in_words",
]
