"""One STOMP subscription: the consumer that queues deliver to, its credit, and how its MESSAGEs look on the wire.

A MESSAGE is a few lines of this subscription's own, then the header block and body as the sender wrote them. So the
lines that are the same for every message are one constant prefix, and a whole slice becomes `prefix.join(...)`: one
call, whatever its length. With ack `auto` (and for 1.0 and 1.1) what follows the prefix is the same for all
subscribers, so they share it through `Slice.rendered`.

Credit (ack `client` and `client-individual`): a window in messages and bytes, opened again by ACK, NACK and by an ACK
inside a transaction (how many deliveries transactions may hold beyond the window has a limit of its own, see
subscribing). With ack `auto` the only limit is the connection's outbound buffer; a message is settled when the
kernel has taken it (b36). Messages of raised priority may pass a tenth beyond a used-up window, so that a backlog in a
consumer's hands does not hold them up.

Nothing here keeps messages once they are rendered: sequences and sizes are enough to settle them. Their memory is that
of the queue, which charges for it, and of the outbound buffer, which charges for its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import repeat
from typing import Final, cast

import attrs

from ...flow import Account, Flow, FlowResource, SourceController, WindowLimiter
from ...flow.kinds import ResourceKind
from ...queues.large import LargeMessage, up_to_large
from ...queues.message import Message
from ...queues.partitioned import Attachment
from ...queues.registry import DurableAttachment, WildcardConsumer
from ...queues.selectors import Selection
from ...queues.slices import Slice
from ...queues.subscription import Subscription
from ...queues.topic import Topic
from ..framing import Piece
from ..outbound import Mark, Outbound
from .encoder import BEHIND_NUL, message_prefix
from .escaping import Version
from .head import SendHead
from .hub import Hub
from .late import GivenBack
from .ledger import Ledger, Portion

ACK_AUTO: Final = "auto"
ACK_CLIENT: Final = "client"

EXPRESS_SHARE: Final = 10
"""One tenth of the window is kept for messages of raised priority; windows below this size have none: "one at a time"
means one.
"""

MESSAGES_PER_STEP: Final = 16
"""Messages that are given back in one step of those in which long work is counted (queues/steps.py)."""

LARGE_WIRE_BYTES: Final = 4096
"""From this average size on, copying a message costs more than handling it apart."""


@attrs.define
class SessionTotals:
    """What went through one connection, for its log line."""

    messages_in_count: int = 0
    messages_out_count: int = 0
    bytes_in: int = 0


class StompSubscription(FlowResource):
    """A consumer of one or more destinations, under one subscription id of one connection."""

    repeats = False
    """What is unsettled may be delivered once more."""
    upkeep_bytes = 1024
    """Attached to nothing: `AttachmentAccount` counts what that takes."""

    def __init__(
        self,
        hub: Hub,
        outbound: Outbound,
        *,
        key: int,
        subscription_id: str | None,
        label: str,
        destination: str,
        ack: str,
        version: Version,
        prefetch_count: int | None,
        prefetch_bytes: int | None,
        totals: SessionTotals,
    ) -> None:
        super().__init__(label, ResourceKind.SUBSCRIPTION, hub.manager)
        self.key = key
        self.subscription_id = subscription_id
        self.destination = destination
        self.ack = ack
        self._totals = totals
        self.last_settled_seconds = hub.clock()
        self.attachments: list[Attachment | WildcardConsumer | DurableAttachment | Subscription] = []
        self._gate: Account | None = None
        """What it waits for before it begins: the RECEIPT of its SUBSCRIBE, see `hold`."""
        self.unsubscribed = False
        self.has_left = False
        """It has ended by UNSUBSCRIBE, and keeps nothing but what transactions hold."""
        self.selection: Selection | None = None
        """Which messages it takes; None: all."""
        self.given_back = GivenBack()
        """What ended subscriptions of its connection gave back."""
        self._bodies = hub.bodies
        self._meets_large = False
        """The last that was delivered had a large body: the next may have one, too."""
        self._hub = hub
        self._outbound = outbound
        self._version = version
        prefix = message_prefix(subscription_id, version)
        token = self.token = hub.message_token
        """First part of the message-ids."""
        self._prefix = prefix + b"message-id:" + token + b"-"
        self._acked_prefix = prefix + b"ack:%d-" % key
        self._acked_tail = b"%d\nmessage-id:" + token.replace(b"%", b"%%") + b"-%d\n"
        self._has_ack_header = ack != ACK_AUTO and version == "1.2"
        self._adds_length = version == "1.2"
        """A MESSAGE gets the content-length that its sender left out. Not before 1.2: there are clients of 1.0 and 1.1
        (those that follow JMS) to which it says that the body is no text.
        """
        self.ledger: Ledger | None = None
        self.window: Account | None = None
        if ack != ACK_AUTO:
            self.ledger = Ledger(by_number=version != "1.2", repeats=self.repeats)
            self.window = Account(
                self,
                Flow(f"window of {self.name}"),
                WindowLimiter(
                    prefetch_count,
                    prefetch_bytes,
                    headroom_count=(prefetch_count or 0) // EXPRESS_SHARE,
                    headroom_bytes=(prefetch_bytes or 0) // EXPRESS_SHARE,
                    clock=hub.clock,
                ),
                clock=hub.clock,
                counts_memory=False,
            )
        self.open()
        self.keep(3 * len(self._prefix))

    @property
    def label(self) -> str:
        return self.name

    # ------------------------------------------------------------------ the consumer port

    def room(self, subscription: Subscription) -> tuple[int, int]:
        if self.unsubscribed:
            return 0, 0
        outbound = self._outbound
        # Throttled though this subscription is not blocked: another one that shares the limiter has filled it.
        if self._gate is not None or outbound.controller.limiter.throttled:
            return 0, 0
        room_bytes = outbound.room_bytes()
        window = self.window
        if window is None:
            return 1 if self._meets_large else 1 << 30, room_bytes
        limiter = window.limiter
        assert isinstance(limiter, WindowLimiter)
        beyond = window.may_exceed(subscription.source)
        if limiter.exhausted if beyond else limiter.throttled:
            return 0, 0
        room_count = limiter.room_count(beyond=beyond)
        return min(1, room_count) if self._meets_large else room_count, min(
            room_bytes, limiter.room_bytes(beyond=beyond)
        )

    def wait(self, subscription: Subscription) -> None:
        if self.unsubscribed:
            subscription.close()  # it is about to be detached, after others
            return
        outbound = self._outbound.controller
        if self._gate is not None:
            self._gate.wait_in_line(subscription.source)
        elif outbound.limiter.throttled:
            outbound.wait_in_line(subscription.source)
        elif self.window is not None:
            self.window.wait_in_line(subscription.source)

    def hold(self) -> Callable[[], None]:
        """Deliver nothing before the function that is returned is called. One hold at a time."""
        assert self._gate is None, f"{self.name} delivers nothing already"
        gate = self._gate = Account(
            self,
            Flow(f"beginning of {self.name}"),
            WindowLimiter(1, None, clock=self._hub.clock),
            clock=self._hub.clock,
            counts_memory=False,
        )
        gate.charge(1, 0, None)

        def begin() -> None:
            if self._gate is not None:
                self._gate = None
                if self.is_open:
                    gate.release(1, 0)
                    gate.close()

        return begin

    def deliver(self, subscription: Subscription, part: Slice, *, dropped_count: int) -> None:
        outbound = self._outbound
        if self._bodies is not None and self._bodies.references_count:
            part = self._up_to_large(subscription, part)
        count = len(part.messages)
        if self.given_back:
            numbers = [message.number for message in part.messages]
            self.given_back.delivered(self.subscription_id, self.token, numbers)
        if subscription.observer is not None:
            subscription.observer.sent(subscription.who, part.sequences, auto=self.ledger is None)
        self._totals.messages_out_count += count
        ledger, window = self.ledger, self.window
        if ledger is None or window is None:
            start_bytes = outbound.appended_bytes
            # Not the slice itself: a topic may drop its messages, and then nobody is charged for them.
            sequences, wire_bytes, attempts = part.sequences, part.wire_bytes, part.attempts

            def settle(taken: bool) -> None:
                if taken:
                    subscription.settle(sequences, wire_bytes)
                    return
                # What the kernel took whole has been seen, what it was in the midst of has failed.
                whole_count, is_cut = self._taken_of(subscription, sequences, attempts, 0, dropped_count, start_bytes)
                if seen := sequences[: whole_count + is_cut]:
                    subscription.give_back(seen, attempted=True, charged=seen[whole_count:])
                if unseen := sequences[len(seen) :]:
                    subscription.give_back(unseen, attempted=False)

            self._write(part, 0, dropped_count, subscription.source, settle)
            return
        first = ledger.add(subscription, part)
        window.charge(count, part.wire_bytes, subscription.source)
        start_bytes = outbound.appended_bytes
        sequences, attempts = part.sequences, part.attempts

        def handed_over(taken: bool) -> None:
            if not taken:
                taken_of = self._taken_of(subscription, sequences, attempts, first, dropped_count, start_bytes)
                if any(taken_of):  # else `first` may be far beyond what was taken
                    ledger.flushed_ordinal = max(ledger.flushed_ordinal, first + sum(taken_of))
                if outbound.has_failed_at(start_bytes):
                    ledger.worked_on = first  # it broke the connection, whatever else was there
            else:
                ledger.flushed_ordinal = first + count

        self._write(part, first, dropped_count, subscription.source, handed_over)

    def _write(self, part: Slice, first_ordinal: int, dropped_count: int, source: SourceController, mark: Mark) -> None:
        """Append the MESSAGE frames of a slice. One with a large body is the only one of its slice."""
        last = part.messages[-1]
        if last.large is None:
            parts = self._render(part, first_ordinal, dropped_count)
            self._outbound.send_messages(parts, sum(map(len, parts)), source, mark)
            return
        assert isinstance(last, LargeMessage), "others have their body with them"
        assert self._bodies is not None, "where else should it come from"
        pull = partial(self._bodies.read, last.body)
        [head] = self._one_by_one(part, first_ordinal, dropped_count)
        self._outbound.send_streamed(head, pull, last.body.length_bytes, b"\0", source, mark)

    def _up_to_large(self, subscription: Subscription, part: Slice) -> Slice:
        """What of this goes out together: what comes before the first large body, or that one alone. The rest goes
        back: its wires are short, but it would wait here for a long time, while others could have it.
        """
        first = up_to_large(part)
        self._meets_large = first is not part or part.messages[0].large is not None
        if first is not part:
            subscription.give_back(part.sequences[len(first) :], attempted=False)
        return first

    def cancelled(self, subscription: Subscription, reason: str) -> Iterator[None]:
        """The queue was deleted: what came from it is done, which gives its credit back. Late ACKs are no mistake."""
        if self.ledger is not None:
            queue = subscription.queue
            for count, size_bytes in self.ledger.forgetting(lambda other: other.queue is queue):
                if count:
                    self.refill(count, size_bytes)
                yield

    # ------------------------------------------------------------------ credit

    def refill(self, count: int, size_bytes: int) -> None:
        """Give credit back: these were acknowledged (perhaps in a transaction that is still open)."""
        self.last_settled_seconds = self._hub.clock()
        if self.window is not None and self.is_open:
            self.window.release(count, size_bytes)

    def settle_held(self, portion: Portion, *, nack: bool) -> None:
        """COMMIT of a transaction that holds these. Their credit was given back before."""
        assert self.ledger is not None, "only a ledger holds"
        self.ledger.finish_held(portion)
        if nack:
            _refuse(portion)
        else:
            portion.subscription.settle(portion.sequences, portion.wire_bytes)

    def release_held(self, portion: Portion) -> None:
        """ABORT of a transaction that held these: they are unsettled again, and count against the window."""
        assert self.ledger is not None, "only a ledger holds"
        if _comes_again(portion.subscription) and portion.subscription.closed:
            self._note_given_back(portion, self.ledger.numbers_of(portion))
        for released in self.ledger.release_held(portion):
            if self.has_left:
                numbers = self.ledger.numbers_of(released)
                for left in self.ledger.take(released.ordinals):
                    self._note_given_back(left, numbers)
                    left.subscription.give_back(left.sequences, attempted=True, charged=())
            elif self.window is not None and self.is_open:
                self.window.charge(len(released.sequences), released.wire_bytes, None)

    def settle(self, portions: list[Portion]) -> None:
        """These were acknowledged."""
        for portion in portions:
            self.refill(len(portion.sequences), portion.wire_bytes)
            portion.subscription.settle(portion.sequences, portion.wire_bytes)

    def reject(self, portions: list[Portion]) -> None:
        """These were refused (NACK): they come again, here or elsewhere, or are given up if they were so for good."""
        for portion in portions:
            self.refill(len(portion.sequences), portion.wire_bytes)
            _refuse(portion)

    def ordinal_of_number(self, number: int) -> int | None:
        """Under which ordinal this message is unsettled here, None if it is not (or ACKs do not name it so)."""
        return None if self.ledger is None else self.ledger.ordinal_of_number(number)

    def indexing_numbers(self) -> Iterator[None]:
        """From now on `ordinal_of_number` knows messages also where ACKs name ordinals; in steps the first time."""
        return iter(()) if self.ledger is None else self.ledger.indexing_numbers(self._number_of)

    def _number_of(self, subscription: Subscription, sequence: int) -> int:
        message = subscription.queue.elements.get(sequence)
        return -1 if message is None else message.number

    def unsettled_of(self, queues: Container[object]) -> int:
        """How many deliveries of these queues are not acknowledged. O(slices)."""
        return 0 if self.ledger is None else self.ledger.unsettled_of(queues)

    # ------------------------------------------------------------------ end

    def detaching(self) -> Iterator[None]:
        """Detach it, in steps, the first of which ends deliveries. What is unsettled stays in the ledger, but for what
        came from topics: those forget a subscriber that has left, so nothing of theirs can be settled or given back,
        unless it shares a durable subscription.
        """
        self.unsubscribed = True
        if self.ledger is not None:
            yield from self.ledger.seeking_worked_on()
            # Of a durable subscription, too, what its consumer broke over is charged; while it can be given back.
            portion = self.ledger.take_worked_on(_comes_again)
            if portion is not None:
                portion.subscription.give_back(portion.sequences, attempted=True)
        while self.attachments:
            attachment = self.attachments[-1]
            if isinstance(attachment, WildcardConsumer):
                yield from attachment.closing()
            else:
                attachment.close()
            self.attachments.remove(attachment)
            if isinstance(attachment, Attachment | DurableAttachment):
                yield from repeat(None, attachment.queues_count)
            else:
                yield
        if self.ledger is not None:
            for taken in self.ledger.taking_unsettled(_comes_again):
                if taken is not None:
                    self._note_given_back(*taken)
                yield
            for _forgotten in self.ledger.forgetting(lambda it: isinstance(it.queue, Topic) and not it.shares):
                yield

    def leaving(self) -> Iterator[None]:
        """It ended by UNSUBSCRIBE, and is detached: what is unsettled goes back, in steps; what an open transaction
        holds, if that is aborted. Whatever the kernel has not taken of it yet will go out all the same.
        """
        self.has_left = True
        if self.ledger is not None:
            for taken in self.ledger.taking_unsettled():
                if taken is None:
                    yield
                    continue
                portion, numbers = taken
                self._note_given_back(portion, numbers)
                yield from repeat(None, len(portion.ordinals) // MESSAGES_PER_STEP)
                yield from _giving_back(portion, attempted=True)

    def close(self) -> None:
        if self.selection is not None:
            self.selection.close()
        super().close()

    def _note_given_back(self, portion: Portion, numbers: SequenceOf[int]) -> None:
        """`numbers`: as the ledger knows them; where it does not, those that can be found out."""
        number_of, of = self._number_of, portion.subscription
        found = numbers or [number_of(of, sequence) for sequence in portion.sequences]
        there = [number for number in found if number >= 0]
        self.given_back.note(self.key, self.subscription_id, self.token, portion.ordinals, there)

    def returning_unsettled(self) -> Iterator[None]:
        """The connection is gone: what it held goes back to its queues, in steps. Detach the subscription before."""
        if self.ledger is not None:
            for portion, attempted in self.ledger.take_all():
                yield from _giving_back(portion, attempted=attempted)

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"ack": self.ack}
        if self.selection is not None:
            facts["selector:"] = self.selection.words
        if self.ledger is not None:
            facts["unacked"] = self.ledger.unsettled_count
            if self.ledger.unsettled_count:
                facts["idle_seconds"] = self._hub.clock() - self.last_settled_seconds
        return facts

    # ------------------------------------------------------------------ wire form

    def _render(self, part: Slice, first_ordinal: int, dropped_count: int) -> list[Piece]:
        """The MESSAGE frames of a slice, as byte strings to be written one after the other."""
        messages, framing = part.messages, self._outbound.framing
        if (
            part.attempts is not None
            or dropped_count
            or not part.neutral
            or part.wire_bytes > LARGE_WIRE_BYTES * len(messages)
        ):
            frames_apart = self._one_by_one(part, first_ordinal, dropped_count)
            return [piece for frame in frames_apart for piece in framing.frame(frame)]
        adds_length = self._adds_length and any([head.content_length < 0 for head in cast(_Heads, part.heads)])  # noqa: C419
        if self._has_ack_header:
            tail = self._acked_tail
            if adds_length:
                frames = [
                    tail % (ordinal, message.number) + _length_line(message) + message.wire
                    for ordinal, message in enumerate(messages, first_ordinal)
                ]
            else:
                frames = [
                    tail % (ordinal, message.number) + message.wire
                    for ordinal, message in enumerate(messages, first_ordinal)
                ]
            return [framing.messages(self._acked_prefix, frames)]
        shared = part.rendered
        if shared is None or shared[0] is not adds_length:
            if adds_length:
                made = [b"%d\n%b%b" % (message.number, _length_line(message), message.wire) for message in messages]
            else:
                made = [b"%d\n%b" % (message.number, message.wire) for message in messages]
            shared = part.rendered = adds_length, made
        return [framing.messages(self._prefix, shared[1].copy())]

    def _taken_of(
        self,
        subscription: Subscription,
        sequences: SequenceOf[int],
        attempts: Mapping[int, int] | None,
        first_ordinal: int,
        dropped_count: int,
        start_bytes: int,
    ) -> tuple[int, bool]:
        """The connection broke with a slice unfinished that began at `start_bytes`: how many of its frames the kernel
        has taken whole, and whether it has taken part of the next one. O(n).

        The messages are looked up in their queue, which has them as long as they are unsettled. Where one is not in
        memory its frame counts as begun: better one charged in vain than a mark too few.
        """
        outbound = self._outbound
        if outbound.has_failed_at(start_bytes):
            return 0, True
        left_bytes = outbound.taken_bytes - start_bytes
        for place, sequence in enumerate(sequences):
            if left_bytes <= 0:
                return place, False
            message = subscription.queue.elements.get(sequence)
            if message is None:
                return place, True
            part = Slice([message], (sequence,), len(message.wire), dict(attempts) if attempts else None)
            [frame] = self._one_by_one(part, first_ordinal + place, dropped_count)
            frame_bytes = sum(map(len, frame))
            if message.large is None:
                frame_bytes = outbound.framing.frame_bytes(frame_bytes)
            else:
                frame_bytes = outbound.streamed_bytes(frame_bytes, message.large[1], 1)
            dropped_count = 0
            if left_bytes < frame_bytes - len(BEHIND_NUL):
                return place, True
            left_bytes -= frame_bytes
        return len(sequences), False

    def _lines_of(self, ordinal: int, number: int) -> bytes:
        if self._has_ack_header:
            return self._acked_prefix + self._acked_tail % (ordinal, number)
        return self._prefix + b"%d\n" % number

    def _one_by_one(self, part: Slice, first_ordinal: int, dropped_count: int) -> list[list[Piece]]:
        """Each frame in pieces: with redelivery headers, a count of dropped messages, header blocks that must be
        rewritten for this version; and such as are too large to be copied.
        """
        frames: list[list[Piece]] = []
        attempts = part.attempts
        for ordinal, (sequence, message) in enumerate(zip(part.sequences, part.messages, strict=True), first_ordinal):
            parts: list[Piece] = [self._lines_of(ordinal, message.number)]
            frames.append(parts)
            if attempts and sequence in attempts:
                parts.append(b"redelivered:true\ndelivery-count:%d\n" % (attempts[sequence] + 1))
            if dropped_count:
                parts.append(b"dropped-count:%d\n" % dropped_count)
                dropped_count = 0
            head = message.head
            assert isinstance(head, SendHead)
            if self._adds_length and message.large is None:
                parts.append(_length_line(message))
            elif self._adds_length and message.large is not None and head.content_length < 0:
                parts.append(b"content-length:%d\n" % message.large[1])
            if head.neutral or head.version == self._version:
                parts.append(message.wire)
            else:
                parts.append(head.block_for(self._version))
                parts.append(message.wire[len(head.block) :])
        return frames


_Heads = Iterable[SendHead]


def _length_line(message: Message) -> bytes:
    """The header line that tells the length of its body, which is here; empty if the sender has."""
    head: SendHead = message.head  # type: ignore[assignment]  # a cast would be a call for each message
    return b"" if head.content_length >= 0 else b"content-length:%d\n" % (len(message.wire) - head.body_offset - 1)


def _comes_again(subscription: Subscription) -> bool:
    """Whether all that is not settled comes again as soon as this one is closed: a durable one of a client id."""
    return subscription.durable_id is not None and not subscription.shares


def _refuse(portion: Portion) -> None:
    portion.subscription.give_back(
        portion.sequences, attempted=True, charged=portion.charged, refused=True, for_good=portion.for_good
    )


def _giving_back(portion: Portion, *, attempted: bool) -> Iterator[None]:
    """Give it back: as many steps as it is dear."""
    portion.subscription.give_back(portion.sequences, attempted=attempted, charged=portion.charged)
    yield from repeat(None, 1 + len(portion.sequences) // MESSAGES_PER_STEP)
