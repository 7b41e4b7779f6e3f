"""Answers to queries by message id and correlation id.

A search goes in small steps between other work, and reads blocks from disk if it must. `find` runs at once, and reads
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from sluiceway.connections import Connections
from sluiceway.dispatcher import Dispatcher
from sluiceway.log_service import BadRequestError, Handler, Send
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.queues.logs.table import LogError
from sluiceway.queues.message import Message
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.trails import Found, Trails, TrailSearch, run
from sluiceway.queues.trails.asking import Steps
from sluiceway.queues.trails.locating import Elements
from sluiceway.shards import Shards
from sluiceway.trails.config import TrailsConfig

LIMIT_DEFAULT: Final = 20
LIMIT_MAX: Final = 100
"""Maximum messages with one correlation id in an answer."""

ENTRIES_MAX: Final = 4000
"""Maximum entries of all messages of an answer; about 600 KiB of JSON."""

SEARCHES_MAX: Final = 8
"""Maximum searches under way."""

LOOKS_PER_STEP: Final = 256
"""Subscriptions without deliveries of a queue examined per step, in a search for the holder of an element."""
LEDGER_LOOKS: Final = 32
"""Number of such subscriptions that take as long as one with deliveries."""

ID_LENGTH_MAX: Final = 1024
SEARCH_PRIORITY: Final = 3
"""Priority of the dispatch context: searches come after deliveries."""

Trail = dict[str, Any]
Answered = Callable[[list[Trail]], None]


def leave_out_entries(trails: Sequence[Trail]) -> None:
    """Leave entries out of an answer, and count them, so that ENTRIES_MAX stay: those of the latest messages."""
    left_count = ENTRIES_MAX
    for trail in reversed(trails):
        entries = trail["entries"]
        trail["omitted_count"] += max(0, len(entries) - left_count)
        trail["entries"] = entries[:left_count]
        left_count -= len(trail["entries"])


class TrailRequestError(ValueError):
    """Invalid query. The message says why, and what is valid."""


class TooManySearchesError(Exception):
    """Refusal of a query, as the maximum number of searches is under way."""


class BrokerTrails:
    """Trails of one broker, for queries."""

    def __init__(
        self,
        config: TrailsConfig,
        shards: Shards,
        connections: Connections,
        *,
        dispatcher: Dispatcher,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        """Take the shards with the messages, and the connections that may hold some of them."""
        self._shards = shards
        self._connections = connections
        self._dispatcher = dispatcher
        self._clock = clock
        self._now_ms = now_ms
        self.trails = Trails(bytes_max=config.bytes_max, keep_seconds=config.keep_seconds, clock=clock)
        self._search = TrailSearch(self.trails, self)
        self._executor: Callable[[Callable[[], None]], None] | None = None
        self._searches_count = 0

    def configure(self, config: TrailsConfig) -> None:
        """Apply these limits from now on."""
        self.trails.configure(bytes_max=config.bytes_max, keep_seconds=config.keep_seconds)

    @property
    def used_bytes(self) -> int:
        """Size of the recorded events."""
        return self.trails.budget.used_bytes

    def came(self, head: SendHead, number: int, count: int) -> None:
        """Record the numbers of new SENDs with this marked head."""
        correlation_id = head.header("correlation-id")
        # Records of logs have no trail: their numbers would take the place of messages in an answer.
        if correlation_id is not None and not head.to_log:
            self.trails.came(number, count, correlation_id)

    # ------------------------------------------------------------------ queries

    def find(
        self, *, message_id: str | None = None, correlation_id: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> list[Trail]:
        """Return the history of the message with this id, or of the latest `limit` with this correlation id (the oldest
        first). Empty: nothing is known. Runs at once (up to some ten milliseconds with many events), and without the
        disk: see `ask`. Raises TrailRequestError.
        """
        return run(self.steps(message_id=message_id, correlation_id=correlation_id, limit=limit))

    def steps(
        self, *, message_id: str | None = None, correlation_id: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Steps[list[Trail]]:
        """Do `find` as a generator, in steps of under a millisecond, which returns the answer. It yields a `Wanted`
        block that should be sent to it. Raises TrailRequestError at once.
        """
        if (message_id is None) is (correlation_id is None):
            raise TrailRequestError("give a message_id or a correlation_id, one of them")
        asked = message_id if message_id is not None else correlation_id
        if not isinstance(asked, str) or not asked or len(asked) > ID_LENGTH_MAX:
            raise TrailRequestError(f"the id must be a text of 1 to {ID_LENGTH_MAX} characters")
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
            raise TrailRequestError(f"the limit must be a whole number from 1 to {LIMIT_MAX}")
        if message_id is not None:
            return self._by_number(self._number_of(message_id))
        return self._by_correlation(asked, limit)

    def ask(
        self,
        answered: Answered,
        *,
        message_id: str | None = None,
        correlation_id: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> None:
        """Do `find` between other work and with the disk, and pass the answer to `answered` later. Raises
        TrailRequestError and TooManySearchesError.
        """
        steps = self.steps(message_id=message_id, correlation_id=correlation_id, limit=limit)
        if self._searches_count >= SEARCHES_MAX:
            raise TooManySearchesError(f"{SEARCHES_MAX} searches are under way: ask again in a moment")
        self._searches_count += 1
        if self._executor is None:
            self._executor = self._dispatcher.executor(SEARCH_PRIORITY, "trails")
        self._executor(partial(self._step, steps, None, answered))

    async def asked(self, **query: Any) -> list[Trail]:
        """Do `ask`, and return the answer. Raises the same."""
        answered = trio.Event()
        found: list[Trail] = []

        def take(answer: list[Trail]) -> None:
            found.extend(answer)
            answered.set()

        self.ask(take, **query)
        await answered.wait()
        return found

    def _step(self, steps: Steps[list[Trail]], elements: Elements, answered: Answered) -> None:
        assert self._executor is not None, "a search is under way"
        done = False
        try:
            wanted = steps.send(elements)  # None begins it
            done = True
        except StopIteration as stop:
            done = True
            self._searches_count -= 1
            answered(stop.value)
            return
        finally:
            if not done:
                self._searches_count -= 1
        if wanted is not None and wanted.queue.storage is not None and not wanted.queue.closed:
            wanted.queue.storage.load(wanted.index, partial(self._read, steps, answered))
        else:
            self._executor(partial(self._step, steps, None, answered))

    def _read(
        self, steps: Steps[list[Trail]], answered: Answered, _index: int, by_sequence: dict[int, Message]
    ) -> None:
        self._step(steps, by_sequence, answered)

    def _number_of(self, message_id: str) -> int:
        token, _dash, digits = message_id.rpartition("-")
        if not token or not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
            raise TrailRequestError(
                f"{message_id!r} is no message-id of this broker: those are a token, a dash and a number, as in "
                f"{self._shards.token.decode()}-42"
            )
        if token != self._shards.token.decode():
            raise TrailRequestError(
                f"{message_id!r} is the id of another broker, or of an earlier run without a store: those of this one "
                f"begin with {self._shards.token.decode()}"
            )
        return int(digits)

    def _by_number(self, number: int) -> Steps[list[Trail]]:
        found = yield from self._search.by_number(number)
        return [] if found is None else [self._told(found)]

    def _by_correlation(self, correlation_id: str, limit: int) -> Steps[list[Trail]]:
        found = yield from self._search.by_correlation(correlation_id, limit)
        told: list[Trail] = []
        for one in found:
            yield None
            told.append(self._told(one))
        leave_out_entries(told)
        return told

    def _told(self, found: Found) -> Trail:
        now_ms, now_seconds = self._now_ms(), self._clock()
        place = found.place
        return {
            "message_id": f"{self._shards.token.decode()}-{found.number}",
            "correlation_id": found.correlation_id,
            "destination": found.destination,
            "words": found.words,
            "complete": found.complete,
            "omitted_count": found.omitted_count,
            "place": None
            if place is None
            else {
                "queue": place.queue_name,
                "on_disk": place.on_disk,
                "ahead_count": place.ahead_count,
                "holder": place.holder,
                "due_at_ms": place.due_at_ms or None,
                "needed_by": list(place.needed_by),
                "needed_by_count": place.needed_by_count,
            },
            "entries": [
                {
                    "at_ms": round(now_ms - (now_seconds - entry.seconds) * 1000),
                    "what": entry.what,
                    "where": entry.where,
                    "detail": entry.detail,
                }
                for entry in found.entries
            ],
        }

    # ------------------------------------------------------------------ port of a search

    def queues(self) -> Iterator[MessageQueue]:
        for destination in list(self._shards.registry.destinations.values()):
            yield from destination.queues

    def holder_of(self, queue: MessageQueue, sequence: int) -> Steps[str | None]:
        passed_count = 0
        for connection in list(self._connections):
            passed_count += 1
            for subscription in list(connection.session.subscriptions.known):
                ledger = subscription.ledger
                passed_count += 1
                if ledger is not None and ledger.has_of(queue):
                    passed_count += LEDGER_LOOKS
                    if (yield from ledger.seeking(queue, sequence)):
                        return subscription.label
                if passed_count >= LOOKS_PER_STEP:
                    passed_count = 0
                    yield None
            if passed_count >= LOOKS_PER_STEP:
                passed_count = 0
                yield None
        return None

    def correlation_of(self, message: Message) -> str | None:
        head = message.head
        return head.header("correlation-id") if isinstance(head, SendHead) and head.marked else None

    def now_ms(self) -> int:
        return self._now_ms()


def _facts(found: list[Trail]) -> Generator[None, None, Mapping[str, Any]]:
    """Return the answer as steps, so that its JSON, which may be long, is made in steps."""
    yield
    return {"trails": found}


REQUEST_FIELDS: Final = ("message_id", "correlation_id", "limit")


Gather = Callable[[Mapping[str, Any], int, list[Trail], Send], None]
"""Adds what other hubs know: gets the request, its limit, what is known here, and who is to have the answer. Raises
TooManySearchesError.
"""


def handler(trails: BrokerTrails | None, gather: Gather | None = None) -> Handler:
    """Return the handler of `SEND /sluiceway/trail`. `gather`: adds what other hubs know; None: there are none."""

    def answered(request: Mapping[str, Any], send: Send, found: list[Trail]) -> None:
        if gather is None:
            send(_facts(found))
            return
        try:
            gather(request, request.get("limit", LIMIT_DEFAULT), found, send)
        except TooManySearchesError as error:
            send(LogError("TOO_MANY_REQUESTS", str(error)))

    def handle(request: Mapping[str, Any], send: Send) -> None:
        if trails is None:
            raise LogError("TRAILS_OFF", "this broker remembers no trails: set enabled = true under [trails]")
        unknown = sorted(set(request).difference(REQUEST_FIELDS))
        if unknown:
            raise BadRequestError(f"{unknown[0]!r} is not known here: {', '.join(REQUEST_FIELDS)} are")
        try:
            trails.ask(partial(answered, request, send), **request)
        except TrailRequestError as error:
            raise BadRequestError(str(error)) from None
        except TooManySearchesError as error:
            raise LogError("TOO_MANY_REQUESTS", str(error)) from None

    return handle
