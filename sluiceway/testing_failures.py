"""Report of a test that fails: its own line that called Sluiceway, and the contents of its broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final

import pytest

from sluiceway.client.errors import ClientError
from sluiceway.config.errors import ConfigError
from sluiceway.embedded import EmbeddedBroker
from sluiceway.embedded_words import summary
from sluiceway.protocols.listener import ListenError
from sluiceway.queues.names import DestinationNameError

_CALLED: Final = ("sluiceway.embedded", "sluiceway.client", "sluiceway.config")
"""Modules whose errors are about the call; errors that other modules raise may be faults of the broker."""
_BETWEEN: Final = frozenset({"asyncio", "concurrent", "contextlib", "outcome", "trio"})
"""Packages between a test, Sluiceway, and functions of the test that Sluiceway calls."""
_EXPECTED: Final = (ClientError, ConfigError, DestinationNameError, ListenError)
_EXPECTED_OF_CALLED: Final = (TimeoutError, RuntimeError, LookupError, TypeError, ValueError)


def shortened(
    excinfo: pytest.ExceptionInfo[BaseException], config: pytest.Config
) -> pytest.ExceptionInfo[BaseException]:
    """Leave lines of Sluiceway out of a traceback whose error is about a call, or comes from a function of the test.
    Changes nothing with `--full-trace`.
    """
    rows = []
    row = excinfo.value.__traceback__
    while row is not None:
        rows.append(row)
        row = row.tb_next
    modules = [str(row.tb_frame.f_globals.get("__name__", "")) for row in rows]
    ours = [name for name in modules if name.startswith("sluiceway.")]
    if not ours or config.getoption("fulltrace", False):
        return excinfo
    raiser = [name for name in modules if name.partition(".")[0] not in _BETWEEN][-1]
    is_expected = isinstance(excinfo.value, _EXPECTED) or (
        raiser.startswith(_CALLED) and isinstance(excinfo.value, _EXPECTED_OF_CALLED)
    )
    if raiser == ours[-1] and not is_expected:
        return excinfo
    left_out = _BETWEEN | {"sluiceway"}
    trace: TracebackType | None = None
    for passed, name in zip(reversed(rows), reversed(modules), strict=True):
        if name.partition(".")[0] not in left_out:
            trace = TracebackType(trace, passed.tb_frame, passed.tb_lasti, passed.tb_lineno)
    if trace is None:
        return excinfo
    return pytest.ExceptionInfo.from_exc_info((excinfo.type, excinfo.value.with_traceback(trace), trace))


def sections(brokers: Iterable[EmbeddedBroker | None]) -> list[tuple[str, str]]:
    """Return the section of a report for each broker that runs."""
    found: list[tuple[str, str]] = []
    for broker in brokers:
        report: dict[str, Any] | None = None
        if broker is not None:
            with contextlib.suppress(RuntimeError):  # the test has stopped the broker
                report = broker.report()
        if report is not None:
            found.append(("sluiceway: what the broker holds", summary(report)))
    return found
