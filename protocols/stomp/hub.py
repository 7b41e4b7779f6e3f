"""What a STOMP session needs of the broker around it. `sluiceway.broker` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flow import FlowManager
from protocols.stomp.left_behind import LeftBehind
from protocols.stomp.spools import Spools
from protocols.stomp.staging import Bodies
from queues import DestinationRegistry
from queues.environment import Scheduling
from queues.logs.table import LogTable
from queues.storage import Store


class LoginRefusedError(Exception):
    """These credentials are not let in. The message goes to the peer: it must not tell which part was wrong."""


class Hub(Protocol):
    """The broker, as a session sees it."""

    @property
    def manager(self) -> FlowManager: ...
    @property
    def registry(self) -> DestinationRegistry: ...
    @property
    def store(self) -> Store | None:
        """Where persistent messages go; None: nothing outlives the broker."""

    @property
    def bodies(self) -> Bodies | None:
        """Where large bodies go; None: every body is held in memory."""

    @property
    def spools(self) -> Spools | None:
        """Where transactions go that are too large for memory; None: without a store they are refused."""

    @property
    def logs(self) -> LogTable | None:
        """Destinations that remember; None: there is no place for them."""

    @property
    def left_behind(self) -> LeftBehind: ...
    @property
    def scheduling(self) -> Scheduling: ...
    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""

    @property
    def message_token(self) -> bytes:
        """First part of every message-id of this broker run; no colon, no backslash."""

    @property
    def server_name(self) -> str: ...

    def take_numbers(self, count: int) -> int:
        """Reserve this many message numbers; returns the first."""

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run this once at the end of the dispatch turn."""

    def turn_with(self, work: Callable[[], None]) -> None:
        """Call this, and deliver what it leads to at once if nothing else is going on."""

    def new_session_id(self) -> str:
        """Unguessable, without colon and backslash."""

    def authenticate(self, login: str | None, passcode: str | None) -> str | None:
        """The name of the user that these let in (None: anonymous). Raises LoginRefused."""

    def answer(self, destination: str, body: bytes, reply: Callable[[bytes], None]) -> None:
        """Answer a request that was sent to `/sluiceway/…`: `reply` gets the JSON, now or later. Raises KeyError for an
        unknown one, with nothing done.
        """
