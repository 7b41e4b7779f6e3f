"""Transactions that are too large for memory: their SENDs go to the store while the transaction is open.

A transaction begins to be *spooled* when all open ones of its connection hold more than `transaction_bytes_max`. From
then on its SENDs leave memory from the front, as they came: PIECE_BYTES of them become one piece for each destination
and priority that they go to. Routes are taken here, so a destination that cannot be is an ERROR now, and not at COMMIT.
Requests to the broker itself stay in memory: they are answered at COMMIT.

While too much waits for the disk the connection is not read. So its memory is that of its transactions and what one
read adds to it.

Deliberately not here: what keeps them (spools.py says what that must do), and how they come back (spool_drain.py).
Source: seed 002 "Transactions".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

import attrs

from ...flow import Flow, SourceController
from ...queues.message import MESSAGE_OVERHEAD_BYTES, Message
from ...queues.topic import Topic
from ..reading import Hold
from .errors import ProtocolError
from .frames import SendRun
from .hub import Hub
from .lanes import Lane, Lanes, Route
from .limits import StompLimits
from .routing import ADMIN_PREFIX, Router
from .sending import Sender
from .spools import Spool, Target
from .transactions import Transaction, Transactions, charge_of, parts_of, steps_for

PIECE_BYTES: Final = 1 << 20
"""About how much leaves memory at a time, and comes back at a time: half a millisecond of encoding."""

PIECE_COUNT: Final = 256
"""About so many messages, if they are small."""

ROUTE_STEPS: Final = 4
"""A destination that may have to be made counts as so many steps."""

PLACES_PER_STEP: Final = 64


class Spooler:
    """Takes the open transactions of one connection out of memory."""

    __slots__ = ("_hold", "_hub", "_lanes", "_limits", "_resume", "_router", "_sender", "_source", "_transactions")

    def __init__(
        self,
        hub: Hub,
        limits: StompLimits,
        transactions: Transactions,
        lanes: Lanes,
        router: Router,
        sender: Sender,
        *,
        resume: Callable[[], None],
        hold: Hold,
    ) -> None:
        """`resume`: the disk takes more, let `relieving` go on; `hold`: the connection is not read."""
        self._hub = hub
        self._limits = limits
        self._transactions = transactions
        self._lanes = lanes
        self._router = router
        self._sender = sender
        self._resume = resume
        self._hold = hold
        self._source: SourceController | None = None
        """What the store blocks; made when it is needed."""

    @property
    def must_wait(self) -> bool:
        """Too much waits for the disk: nothing more should be read now."""
        return self._source is not None and self._source.blocked

    @property
    def waits_for_room(self) -> bool:
        """It waits because the disk is nearly full, or fails: ACKs may help."""
        return self.must_wait and self._hub.store is not None and not self._hub.store.accepting

    def close(self) -> None:
        """The connection is gone: what is written from now on waits for nobody."""
        if self._source is not None:
            self._source.close()
            self._source = None
            self._hold.let_go()

    # ------------------------------------------------------------------ open transactions

    def relieving(self) -> Iterator[None]:
        """Take as much out of memory as is due, in steps. Raises ProtocolError: there is no room for it anywhere; or
        about one SEND, that can't be sent.
        """
        transactions = self._transactions
        while transactions.is_over:
            largest = transactions.largest
            if largest.spool is None:
                self._begin(largest)
            elif not largest.sends:
                raise self._too_large(f"{self._limits.transaction_bytes_max} bytes of requests", "")
            if not (yield from self._pumping(largest, 0)):
                return
        for transaction in transactions.spooled():
            yield from self._pumping(transaction, PIECE_BYTES)

    def _begin(self, transaction: Transaction) -> None:
        spools = self._hub.spools
        limits = self._limits
        if spools is None or not limits.transaction_spool_bytes_max:
            raise self._too_large(
                f"{limits.transaction_bytes_max} bytes",
                ", or have a store: with one, larger transactions are spooled" if spools is None else "",
            )
        if self._source is None:
            self._source = self._hold.source(
                self._lanes,
                Flow(f"spooled transactions of {self._lanes.name}"),
                on_resume=self._resume,
                clock=self._hub.clock,
            )
        transaction.spool = spools.begin()

    @staticmethod
    def _too_large(what: str, remedy: str) -> ProtocolError:
        return ProtocolError(
            "transaction-too-large",
            f"open transactions hold more than {what}",
            f"COMMIT more often, or raise transaction_bytes_max of the listener{remedy}.",
        )

    def _pumping(self, transaction: Transaction, keep_bytes: int) -> Generator[None, None, bool]:
        """Take this one out of memory, until less than this is left there. False: it has to wait for the disk."""
        source = self._source
        while transaction.sends and transaction.size_bytes > keep_bytes:
            if source is not None and not self._may_write(source):
                return False
            yield from self._writing_piece(transaction)
        return True

    def _may_write(self, source: SourceController) -> bool:
        store = self._hub.store
        if not source.blocked and store is not None and not store.accepts(source):
            store.hold_back(source)
        return not source.blocked

    def writing_out(self, transaction: Transaction) -> Iterator[None]:
        """COMMIT: all that is left of it in memory goes, now, in steps. Raises ProtocolError."""
        while transaction.sends:
            yield from self._writing_piece(transaction)

    def _writing_piece(self, transaction: Transaction) -> Iterator[None]:
        size_bytes = count = 0
        by_target: dict[Target, list[Message]] = {}
        try:
            while transaction.sends and size_bytes < PIECE_BYTES and count < PIECE_COUNT:
                run = transaction.sends.popleft()
                if run.head.destination.startswith(ADMIN_PREFIX):
                    transaction.requests.append(run)  # still charged
                    continue
                size_bytes += charge_of(run)
                count += len(run.wires)
                # Without its receipts: those went out when the SENDs came.
                route = self._lanes.route(run.head)
                if route is None:
                    route = yield from self._router.finding(attrs.evolve(run, receipts=None))
                    yield
                for forwarded, lane in () if route is None else route.targets:
                    for part in parts_of(run):
                        messages, _wire_bytes = self._sender.messages(part, forwarded)
                        by_target.setdefault(target_of(lane), []).extend(messages)
                        yield from steps_for(len(messages))
        except ProtocolError as error:
            error.command = None
            error.identify("SEND", {"destination": run.head.destination, "transaction": transaction.name})
            raise
        finally:
            self._transactions.release(transaction, size_bytes)
        assert transaction.spool is not None, "it is spooled"
        bytes_max = self._limits.transaction_spool_bytes_max
        for target, messages in by_target.items():
            for start in range(0, len(messages), PIECE_COUNT):
                piece = messages[start : start + PIECE_COUNT]
                self._write(transaction.spool, target, piece, bytes_max, self._source)
                yield from steps_for(len(piece))

    def _write(
        self, spool: Spool, target: Target, messages: list[Message], bytes_max: int, source: SourceController | None
    ) -> None:
        account = self._lanes.spooled
        account.charge(0, spool.write(target, messages, source), None)
        if account.limiter.used_bytes > bytes_max:
            raise ProtocolError(
                "transaction-too-large",
                f"transactions of this connection take more than {bytes_max} bytes of the disk",
                "Those that are committed count until their messages are in their queues. COMMIT more often, consume "
                "from full destinations, or raise transaction_spool_bytes_max of the listener.",
            )

    # ------------------------------------------------------------------ COMMITs that must not wait

    def spooling(self, routed: Iterable[tuple[SendRun, Route]]) -> Generator[None, None, Spool]:
        """A spool with these messages, for a COMMIT that was in memory, made in steps. Raises ProtocolError, with
        nothing left, if the connection has too much on the disk already.
        """
        spools = self._hub.spools
        assert spools is not None, "only with a store"
        bytes_max = self._limits.transaction_spool_bytes_max
        spool = spools.begin()
        pieces: dict[Lane, list[Message]] = {}
        sizes: Counter[Lane] = Counter()
        try:
            for run, route in routed:
                for forwarded, lane in route.targets:
                    for part in parts_of(run):
                        messages, size_bytes = self._sender.messages(part, forwarded)
                        if lane.queue.closed:
                            self._hub.registry.unheard_count += len(messages)
                            continue
                        pieces.setdefault(lane, []).extend(messages)
                        sizes[lane] += size_bytes + MESSAGE_OVERHEAD_BYTES * len(messages)
                        if sizes[lane] >= PIECE_BYTES or len(pieces[lane]) >= PIECE_COUNT:
                            self._write(spool, target_of(lane), pieces.pop(lane), bytes_max, self._source)
                            del sizes[lane]
                        yield from steps_for(len(messages))
            for lane, piece in pieces.items():
                self._write(spool, target_of(lane), piece, bytes_max, self._source)
                yield from steps_for(len(piece))
        except ProtocolError:
            yield from self.aborting(spool)
            raise
        return spool

    def aborting(self, spool: Spool) -> Iterator[None]:
        """This one never was."""
        spool.abort()
        for spooled in spool.targets.values():
            places = spooled.places
            for start in range(0, len(places), PLACES_PER_STEP):
                some = places[start : start + PLACES_PER_STEP]
                self._lanes.spooled.release(0, sum([spool.size_of(place) for place in some]))
                yield


def target_of(lane: Lane) -> Target:
    """Where SENDs of this lane go, by name: the queue may be another one by then."""
    return lane.destination.address.canonical, lane.queue.priority, isinstance(lane.queue, Topic)
