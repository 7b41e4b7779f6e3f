"""Scheduling: dispatch contexts with priorities, timers, callbacks from other threads, all in one trio task.

`Dispatcher` is the one to run; `DispatcherCore` is the same without trio, driven by hand in simulations. The modules:
context (the handle of a component), ready (ten lists and the shares), timers, inbox (other threads), executor, core
(one turn), shell (trio). `Periodic` is repeated work.
"""

from __future__ import annotations

from .config import DispatcherConfig
from .context import DONE, MORE, PRIORITY_COUNT, PRIORITY_DEFAULT, PRIORITY_HIGHEST, DispatchContext
from .core import DispatcherCore, ErrorHook
from .errors import DispatcherClosedError, DispatcherError, DispatcherStateError
from .executor import CallableExecutor
from .periodic import Periodic
from .shell import Dispatcher
from .statistics import DispatcherStatistics
from .timers import Timer

__all__ = [
    "DONE",
    "MORE",
    "PRIORITY_COUNT",
    "PRIORITY_DEFAULT",
    "PRIORITY_HIGHEST",
    "CallableExecutor",
    "DispatchContext",
    "Dispatcher",
    "DispatcherClosedError",
    "DispatcherConfig",
    "DispatcherCore",
    "DispatcherError",
    "DispatcherStateError",
    "DispatcherStatistics",
    "ErrorHook",
    "Periodic",
    "Timer",
]
