"""Attaching the subscriptions of one connection, and detaching them: counted, and in steps.

A SUBSCRIBE with a wildcard may cover thousands of destinations. It takes effect in steps (queues/steps.py), and the
frames behind it on the connection wait for the last step. So a RECEIPT of SUBSCRIBE promises, as ever, that the
subscription gets every later message, and a SEND behind a SUBSCRIBE is delivered to it; messages that other clients
send meanwhile to a destination that is not attached yet may be missed. Destinations that are made meanwhile are
attached at once.

UNSUBSCRIBE and the end of a connection end deliveries at once, and detach in steps.

A connection that has done TURN_STEPS of this work in one turn leaves the next turn to other connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Final

from ...queues.attachments import AttachmentAccount, AttachmentLimitError
from ...queues.durable_wildcards import DurablePatternError
from ...queues.durables import DurableInUseError, DurableLimitError, DurableNameError, DurableSelectorError
from ...queues.names import DestinationName
from ...queues.registry import DestinationLimitError, DestinationRegistry, DurableWildcard, WildcardConsumer
from ...queues.retained import Gathering
from ..reading import ReadGate, Reason
from .delivery import StompSubscription
from .errors import ProtocolError
from .replies import Replies
from .subscribe_headers import Declared

TURN_STEPS: Final = 16
"""Steps after which others have their turn: about two milliseconds, if they make destinations."""

Admits = Callable[[str], bool]

DURABLE_ERRORS: Final = (
    DurableNameError,
    DurableSelectorError,
    DurableInUseError,
    DurableLimitError,
    DurablePatternError,
    DestinationLimitError,
    AttachmentLimitError,
)
"""Errors of attaching to a durable subscription."""


def too_many_attachments(reason: str) -> ProtocolError:
    """The ERROR for `reason`, which names the limit."""
    return ProtocolError(
        "too-many-attachments",
        reason,
        "Use narrower wildcards, UNSUBSCRIBE unneeded ones, or raise attachments_max: each takes up to 3 KiB.",
    )


def durable_error(error: Exception) -> ProtocolError:
    """The ERROR for one of DURABLE_ERRORS."""
    if isinstance(error, DurableNameError):
        return ProtocolError("bad-durable-name", str(error), "Choose another one.")
    if isinstance(error, AttachmentLimitError):
        return too_many_attachments(str(error))
    return ProtocolError(getattr(error, "code", "not-durable"), str(error))


class Attaching:
    """Attachments of one connection."""

    __slots__ = (
        "_fail",
        "_hold",
        "_registry",
        "_replies",
        "_turn_began_count",
        "_wake",
        "account",
        "ended",
        "line",
        "overdrawn",
    )

    def __init__(
        self,
        registry: DestinationRegistry,
        replies: Replies,
        attachments_max: int,
        reading: ReadGate,
        *,
        fail: Callable[[ProtocolError], None],
        wake: Callable[[], None],
    ) -> None:
        """`fail`: end the connection with this error; `wake`: let its turn come, for `begin_turn`."""
        self._hold = reading.hold(Reason.SUBSCRIPTIONS)
        self._wake = wake
        self._registry = registry
        self._replies = replies
        self._fail = fail
        self.line = registry.steps.line(wake)
        """Line of the work that is done in steps."""
        self._turn_began_count = 0
        self.ended = False
        """The connection ends: nothing is subscribed to any more."""
        self.overdrawn = ""
        """Reason to end the connection: new destinations gave it too many attachments. Empty: none."""

        def note(reason: str) -> None:
            self.overdrawn = reason
            wake()

        self.account = AttachmentAccount(registry.attachments, attachments_max, note)

    @property
    def is_busy(self) -> bool:
        """Whether some work is done in steps."""
        return self.line.busy

    @property
    def pauses(self) -> bool:
        """Whether the next frame has to wait: for work in steps, or for the next turn."""
        line = self.line
        return bool(line.work) or line.spent_count > self._turn_began_count + TURN_STEPS

    def hold_back(self) -> None:
        """Stop reading until the next turn, if a frame has to wait for this work."""
        if self.pauses:
            self._hold.take()
            if not self.line.busy:  # or its line says when it is done
                self._wake()

    def begin_turn(self) -> None:
        """Begin a turn: other connections have had theirs. Ends the connection if it has too many attachments."""
        self._turn_began_count = self.line.spent_count
        if not self.line.busy:
            self._hold.release()
        if self.overdrawn:
            self._fail(too_many_attachments(self.overdrawn))

    def do(self, work: Iterator[object]) -> None:
        """Add work in steps behind the work under way."""
        self.line.add(work)

    def do_later(self, work: Iterator[object]) -> None:
        """Add work in steps that no frame has asked for; frames that are read meanwhile wait for it."""
        self.line.add(work)
        self.hold_back()

    def finish(self) -> None:
        """Finish the remaining work now."""
        self.line.finish()

    def attaching(
        self,
        subscription: StompSubscription,
        addresses: list[DestinationName],
        *,
        exclusive: bool,
        admits: Admits | None,
        headers: dict[str, str],
        declared: Declared | None = None,
    ) -> Iterator[None]:
        """Attach a subscription to all destinations that it names, and send the RECEIPT, in steps: see `do`.
        `declared`: wishes about the one queue that it names.
        """
        registry = self._registry
        gathering = Gathering(registry.retained, registry) if len(registry.retained) else None
        begin = None if gathering is None else subscription.hold()
        try:
            for address in addresses:
                if gathering is not None and not address.wildcard:
                    gathering.attached(address.canonical)
                attach = registry.attach_wildcard if address.wildcard else registry.attach
                attached = attach(
                    address,
                    subscription,
                    exclusive=exclusive,
                    admits=admits,
                    selection=subscription.selection,
                    account=self.account,
                )
                subscription.attachments.append(attached)
                if declared is not None:
                    registry.declare(address, declared.limits, goes_with_consumers=declared.goes_with_consumers)
                if isinstance(attached, WildcardConsumer):
                    attached.on_attach = None if gathering is None else gathering.attached
                    yield from attached.attaching()
                    attached.on_attach = None
                    if gathering is not None and address.kind.is_topic:
                        yield from gathering.without_topic(address, admits)
                    yield
                else:
                    yield from repeat(None, attached.queues_count)
                if subscription.unsubscribed:
                    return  # the connection has ended
        except DestinationLimitError as limit:
            error = ProtocolError(limit.code, str(limit))
        except AttachmentLimitError as limit:
            error = too_many_attachments(str(limit))
        else:
            self._replies.receipt(headers.get("receipt"))
            if gathering is not None and begin is not None:
                subscription.begin_with(gathering.all(), registry.environment, begin)
            return
        error.identify("SUBSCRIBE", headers)
        self._fail(error)

    def attaching_durably(
        self,
        subscription: StompSubscription,
        wildcard: DurableWildcard,
        gathering: Gathering | None,
        headers: dict[str, str],
        *,
        begin: Callable[[], None],
        keep: Callable[[Callable[[], None]], None],
    ) -> Iterator[None]:
        """Attach a subscription that reads as a durable one from all topics that match, in steps. `keep` has the
        durable subscription written, and calls back.
        """
        registry = self._registry
        try:
            wildcard.on_attach = None if gathering is None else gathering.attached
            yield from wildcard.attaching()
            wildcard.on_attach = None
            if gathering is not None:
                yield from gathering.without_topic(wildcard.address, wildcard.admits)
        except (AttachmentLimitError, DurableLimitError) as limit:
            if wildcard in subscription.attachments:
                subscription.attachments.remove(wildcard)
                yield from wildcard.closing()
                if wildcard.is_new:
                    registry.remove_durable(wildcard.durable, _ignored)
            error = durable_error(limit)
            error.identify("SUBSCRIBE", headers)
            self._fail(error)
            return
        if subscription.unsubscribed:
            return  # the connection has ended
        if gathering is not None:
            subscription.begin_with(gathering.all(), registry.environment, subscription.hold())
        keep(begin)

    def review(self, wildcard: WildcardConsumer, admits: Admits | None) -> None:
        """Compare the destinations of a wildcard consumer with the permissions anew."""
        self.line.add(self._review(wildcard, admits))

    def _review(self, wildcard: WildcardConsumer, admits: Admits | None) -> Iterator[None]:
        try:
            yield from wildcard.reviewing(admits)
        except AttachmentLimitError as limit:
            self._fail(too_many_attachments(str(limit)))
        except DurableLimitError as limit:
            self._fail(durable_error(limit))

    def detach(self, subscriptions: list[StompSubscription]) -> None:
        """Deliver no more to these subscriptions; unacknowledged deliveries stay."""
        for subscription in subscriptions:
            subscription.end_deliveries()
        if subscriptions:
            self.line.add(chain.from_iterable(subscription.detaching() for subscription in subscriptions))


def _ignored(_error: Exception | None) -> None:
    """Ignore whether a durable subscription of which no client knows is deleted on the disk."""
