"""Destination of messages as its senders see it: a queue, or a log."""

from __future__ import annotations

from typing import Protocol

from ..flow import SourceController
from .environment import QueueEnvironment
from .message import Message
from .observer import Observer


class MessageSink(Protocol):
    """Takes messages, or blocks who brings them."""

    environment: QueueEnvironment

    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool:
        """Whether the sink was deleted, or the broker stops."""

    @property
    def rejects(self) -> bool:
        """Whether the sink may refuse messages instead of blocking."""

    @property
    def keeps(self) -> bool:
        """Whether persistent messages outlive the broker."""

    @property
    def observer(self) -> Observer | None:
        """Observer of the sink's messages."""

    def fits(self, count: int, wire_bytes: int) -> bool:
        """Whether a run of this size would be taken whole, at once."""

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        """Take a run, or refuse it for now (False) and block `source`."""


class SinkOwner(Protocol):
    """Owner of a sink: a destination, or the log itself."""

    producers_count: int

    @property
    def name(self) -> str: ...
