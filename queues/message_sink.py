"""What senders need of that to which they send: a queue, or a log."""

from __future__ import annotations

from typing import Protocol

from ..flow import SourceController
from .message import Message
from .observer import Observer


class MessageSink(Protocol):
    """Takes messages, or blocks who brings them."""

    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool:
        """It was deleted, or the broker stops."""

    @property
    def rejects(self) -> bool:
        """It may refuse for good instead of blocking."""

    @property
    def keeps(self) -> bool:
        """What is persistent outlives the broker."""

    @property
    def observer(self) -> Observer | None:
        """Is told what becomes of its messages."""

    def fits(self, count: int, wire_bytes: int) -> bool:
        """Whether a run of this size would be taken whole, at once."""

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        """Take a run, or refuse it for now (False) and block `source`."""


class SinkOwner(Protocol):
    """What an inlet belongs to: a destination, or the log itself."""

    producers_count: int

    @property
    def name(self) -> str: ...
