"""Errors of the dispatcher itself. Errors raised *by* a dispatch are not wrapped: they reach `on_error` unchanged."""

from __future__ import annotations


class DispatcherError(Exception):
    """Base of all errors that the dispatcher raises itself."""


class DispatcherClosedError(DispatcherError):
    """The dispatcher was closed, or its `run()` has ended: it accepts no new work."""


class DispatcherStateError(DispatcherError):
    """Misuse by the caller: a turn inside a turn, a second `run()`, trio-side calls from a foreign thread."""
