"""What can go wrong in the dispatcher itself. Errors raised *by* a dispatch are not wrapped: they reach `on_error` as
they are."""

from __future__ import annotations


class DispatcherError(Exception):
    """Base of everything the dispatcher raises on its own account."""


class DispatcherClosedError(DispatcherError):
    """The dispatcher was closed, or its `run()` has ended: it takes no new work."""


class DispatcherStateError(DispatcherError):
    """The caller's mistake: a turn inside a turn, a second `run()`, trio-side calls from a foreign thread."""
