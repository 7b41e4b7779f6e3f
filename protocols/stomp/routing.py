"""Routes of the SENDs of one connection: from a destination header to lanes of queues and logs. Checklist b28-b30.

A composite has one target per destination, each with its own `destination` header. A request to the broker itself has
no route (requesting.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

from ...flow.graph import Steps
from ...queues.destination import Destination
from ...queues.logs.log import Log
from ...queues.logs.offers import is_batch
from ...queues.logs.partitions import LogPartitions, key_in
from ...queues.logs.table import LogError
from ...queues.names import COMPOSITE_COUNT_MAX, DestinationName, DestinationNameError, Kind, parse_composite
from ...queues.registry import DestinationLimitError
from ...queues.retained import is_retained, topic_of
from .authorization import Action, Authorizer
from .errors import ProtocolError
from .frames import SendRun
from .head import SendHead
from .hub import Hub
from .lanes import Lane, Lanes, Route
from .staging import LargeRun
from .temporary import TemporaryDestinations
from .transactions import Transaction

ADMIN_PREFIX: Final = "/sluiceway/"
"""SENDs to such names are requests to the broker itself."""
CREDIT_REQUEST: Final = f"{ADMIN_PREFIX}credit"
"""The request about the credit of a subscription of the same connection."""
DESTINATION_STEPS: Final = 3
"""Cost of making a destination, in legs of a composite."""
LOG_STEPS: Final = 6
REWRITING_STEPS: Final = 4
"""Steps of rewriting a head for one destination of a composite."""
_LOG_PREFIX: Final = "/log/"


def about_send(error: ProtocolError, run: SendRun) -> ProtocolError:
    """The error, with the headers of the first SEND of the run."""
    headers = {"destination": run.head.destination}
    error.identify("SEND", {**headers, "receipt": run.receipts[0]} if run.receipts else headers)
    return error


def send_error(run: SendRun, code: str, message: str) -> ProtocolError:
    """An error about the first SEND of a run."""
    return about_send(ProtocolError(code, message), run)


def _too_large_for(address: DestinationName, run: SendRun) -> ProtocolError:
    return send_error(
        run,
        "MESSAGE_SIZE_TOO_LARGE",
        f"{address.canonical} can't take this body: give its content-length, and see log_batch_bytes_max",
    )


def _check_retained(head: SendHead, addresses: Sequence[DestinationName], run: SendRun) -> None:
    """Raise ProtocolError for a SEND to the queues of retained messages, and for what can't be retained."""
    for address in addresses:
        if is_retained(address.canonical):
            message = f"{address.canonical} holds what is retained for {topic_of(address.canonical)}: send to that"
            raise send_error(run, "bad-destination", f"{message} with retain:set")
        if head.retain is not None and (not address.kind.is_topic or address.is_temporary):
            message = f"retain:{head.retain} to {address.canonical}: only lasting topics have a retained message"
            raise send_error(run, "bad-retain", message)
    if head.retain is not None and head.delay_ms:
        message = f"retain:{head.retain} of a delayed message: send it without delay, or when it is due"
        raise send_error(run, "not-supported", message)


class Router:
    """Finds the routes of one connection, and makes the destinations on them."""

    __slots__ = ("_authorizer", "_hub", "_lanes", "_temporary")

    def __init__(self, hub: Hub, lanes: Lanes, temporary: TemporaryDestinations, authorizer: Authorizer) -> None:
        self._hub = hub
        self._lanes = lanes
        self._temporary = temporary
        self._authorizer = authorizer

    def finding(self, run: SendRun) -> Steps[Route | None]:
        """Find the lanes of a head, in steps. None: it names only temporary destinations that are gone. Raises
        ProtocolError.
        """
        head = run.head
        try:
            forwarded = self._temporary.with_global_reply_to(head)
            addresses = [self._temporary.to_global(address) for address in parse_composite(head.destination)]
        except DestinationNameError as error:
            raise send_error(run, "bad-destination", str(error)) from None
        except DestinationLimitError as error:
            raise send_error(run, error.code, str(error)) from None
        self.check(addresses, run)
        _check_retained(head, addresses, run)
        targets: list[tuple[SendHead, Lane]] = []
        divided: LogPartitions | None = None
        repeated = forwarded.repeated()
        if len(repeated) * len(addresses) > COMPOSITE_COUNT_MAX:
            message = f"{len(repeated)} deliveries to {len(addresses)} destinations: {COMPOSITE_COUNT_MAX} at most"
            raise send_error(run, "bad-destination", message)
        if len(repeated) > 1:
            if head.origin is not None:
                message = (
                    "repeated delivery of a message that names its producer: its repetitions would be taken for it"
                )
                raise send_error(run, "not-supported", message)
            yield from repeat(None, REWRITING_STEPS * len(repeated))
        for address in addresses:
            if address.wildcard:
                raise send_error(
                    run, "bad-destination", f"cannot SEND to the wildcard {address.canonical}: name one destination"
                )
            if address.kind is Kind.LOG:
                yield from repeat(None, LOG_STEPS)
                if len(repeated) > 1:
                    message = f"repeated delivery to {address.canonical}: a log keeps its records, read them again"
                    raise send_error(run, "not-supported", message)
                log, divided = self._log(address, run)
                targets.append((forwarded, self._lanes.lane(log, log)))
                continue
            if address.canonical not in self._hub.registry.destinations:
                yield from repeat(None, DESTINATION_STEPS)
            destination = self.destination(address, run)
            if destination is None:
                continue
            for each in repeated:
                own = each
                if len(addresses) > 1:
                    own = each.with_headers({"destination": self._temporary.said(address)})
                    yield from repeat(None, REWRITING_STEPS)
                partitions = destination.queue.partitions
                if partitions and destination.key_of(own) not in partitions:
                    self._check_upkeep(f"priority {own.priority} of {address.canonical}", run)
                targets.append((own, self._lanes.lane(destination, destination.queue_for(own))))
        if not targets:
            return None
        plain = (
            len(targets) == 1
            and targets[0][0] is head
            and not head.delay_ms
            and head.retain is None
            and not targets[0][1].adds_headers
        )
        route = Route(tuple(targets), plain=plain, divided=divided if plain else None)
        if len(repeated) == 1:
            self._lanes.keep_route(head, route)
        return route

    def check_for_transaction(self, run: SendRun) -> None:
        """Raise ProtocolError if this head can't be part of a transaction: a leg of it is forbidden, or to a log that
        could not be appended to all or nothing.
        """
        head = run.head
        if head.retain is not None:
            message = f"retain:{head.retain} in a transaction: send it without, what is retained is no part of one"
            raise send_error(run, "not-supported", message)
        if head.destination == CREDIT_REQUEST:
            raise send_error(
                run,
                "not-supported",
                f"a request to {CREDIT_REQUEST} in a transaction: send it without, credit is no part of one",
            )
        if _LOG_PREFIX not in head.destination and self._authorizer.guard.allows_everything:
            return
        if head.destination.startswith(ADMIN_PREFIX):
            return  # asked for when it is answered
        try:
            addresses = self._temporary.in_host_of_all(head.destination)
        except DestinationNameError as error:
            raise send_error(run, "bad-destination", str(error)) from None
        self.check(addresses, run)
        for address in addresses:
            if address.kind is not Kind.LOG:
                continue
            if isinstance(run, LargeRun):
                raise _too_large_for(address, run)
            if self._hub.logs is not None and self._hub.spools_of(self._shard_of(address)) is None:
                raise send_error(
                    run,
                    "not-supported",
                    f"SEND to {address.canonical} in a transaction: this broker keeps nothing on a disk, so it could "
                    "not promise all or nothing. Start it with a data folder, or send it without a transaction.",
                )

    def _shard_of(self, address: DestinationName) -> int | None:
        shard_of = self._hub.shard_of
        return None if shard_of is None else shard_of(address.canonical)

    def bind(self, transaction: Transaction, run: SendRun) -> None:
        """Bind a transaction to the shard that this SEND of it goes to. Raises ProtocolError if it is another one."""
        shard_of = self._hub.shard_of
        if shard_of is None or run.head.destination.startswith(ADMIN_PREFIX):
            return
        for address in self._temporary.in_host_of_all(run.head.destination):
            if not address.is_temporary:
                transaction.bind(shard_of(address.canonical), address.canonical)

    def check(self, addresses: Sequence[DestinationName], run: SendRun) -> None:
        """Ask whether the user may send to all of them, before any is made. Raises ProtocolError."""
        try:
            self._authorizer.check(Action.SEND, addresses)
        except ProtocolError as error:
            raise about_send(error, run) from None
        for address in addresses:
            try:
                self._hub.registry.check_prefix(address, to_send=True)
            except DestinationNameError as error:
                raise send_error(run, "bad-destination", str(error)) from None

    def destination(self, address: DestinationName, run: SendRun) -> Destination | None:
        """Return the queue or topic of this address, made if need be; None: a temporary one that is gone. Raises
        ProtocolError.
        """
        registry = self._hub.registry
        if address.temporary_global and address.canonical not in registry.destinations:
            # Its owner has gone: no client will ever read this, and the sender did nothing wrong.
            registry.unheard_count += len(run.wires)
            return None
        try:
            return registry.get(address)
        except DestinationLimitError as error:
            raise send_error(run, error.code, str(error)) from None

    def _log(self, address: DestinationName, run: SendRun) -> tuple[Log, LogPartitions | None]:
        """Return the log of this address, or the partition of it that the head decides, and the partitions."""
        logs = self._hub.logs
        if logs is None:
            raise send_error(run, "no-logs", "this broker keeps no logs: it has no data folder")
        if isinstance(run, LargeRun):
            raise _too_large_for(address, run)
        try:
            if (wanted := run.head.header("log-partitions")) is not None:
                logs.check_partitions(address.canonical, wanted)
            divided = logs.partitions_of(address.canonical)
            if divided is not None and is_batch(run.head) and key_in(run.head) is None:
                # Its records may have keys of several partitions, and are compressed.
                raise send_error(
                    run,
                    "not-supported",
                    f"a batch to {divided.name}, which is divided: send it to one of its {divided.count} partitions, "
                    f"{divided.name_of(0)} to {divided.name_of(divided.count - 1)}, or with the key of all its records "
                    "in the header key",
                )
            name = address.canonical if divided is None else divided.name_of(divided.part_of(run.head))
            return logs.get(name), divided
        except LogError as error:
            raise send_error(run, error.code, str(error)) from None

    def _check_upkeep(self, what: str, run: SendRun) -> None:
        try:
            self._hub.registry.check_upkeep(what)
        except DestinationLimitError as error:
            raise send_error(run, error.code, str(error)) from None
