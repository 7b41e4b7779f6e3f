"""Flow control: resources, limiters, the controllers that block and resume, and the map that shows which source waits
on which sink.

Pure: no I/O, no threads, no clock of its own. Every time is a reading of the `clock` that was passed in, in monotonic
seconds.

    limiters    the capacity of a resource, and when it throttles
    resource    flows, and the resources through which they run
    kinds       kinds of resources
    source      sources, and the sinks that block them
    account     charges of a flow, blocking and resuming of its sources
    controller  an account that takes elements in, with overflow
    shares      shares of the memory of all limiters, and back-pressure when it is short
    upkeep      memory beside messages
    waiting     the line of blocked sources, by priority
    manager     the registry of resources, and snapshots of it
    snapshot    snapshots as frozen data
    graph       chains, bottlenecks and cycles of waits
    words       sizes, ages and facts in words
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
from .resource import Flow, FlowResource, WaitEdge
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
    "FlowSnapshot",
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
