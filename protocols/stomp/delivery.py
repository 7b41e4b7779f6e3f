"""One STOMP subscription: the consumer that queues deliver to, and its credit. The wire form of its MESSAGEs belongs to
its renderer (message_renderer.py).

Credit (ack `client` and `client-individual`): a window in messages and bytes, opened again by ACK, NACK and by an ACK
inside a transaction (how many deliveries transactions may hold beyond the window has a limit of its own, see
subscribing). With ack `auto` the only limit is the connection's outbound buffer; a message is acknowledged when the
kernel has taken it (b36). Messages of raised priority may exceed a used-up window by a tenth, so that a consumer's
unacknowledged backlog does not block them.

Nothing here keeps messages once they are rendered: sequences and sizes are enough to settle them. Their memory is that
of the queue, which charges for it, and of the outbound buffer, which charges for its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import repeat
from typing import Final

import attrs

from ...flow import Account, Flow, FlowResource, SourceController, WindowLimiter
from ...flow.kinds import ResourceKind
from ...flow.snapshot import Circumstances
from ...queues.environment import QueueEnvironment
from ...queues.large import LargeMessage, up_to_large
from ...queues.partitioned import Attachment
from ...queues.registry import DurableAttachment, WildcardConsumer
from ...queues.retained import Place
from ...queues.selectors import Selection
from ...queues.slices import Slice
from ...queues.subscription import Subscription
from ...queues.topic import Topic
from ..outbound import Mark, Outbound
from .encoder import BEHIND_NUL
from .errors import ProtocolError
from .hub import Hub
from .late import GivenBack
from .ledger import Ledger, Portion
from .message_renderer import MessageRenderer
from .retained import RetainedShow
from .subscribe_headers import ACK_AUTO, SubscriptionSpec

EXPRESS_SHARE: Final = 10
"""One tenth of the window is kept for messages of raised priority; windows below this size have none: "one at a time"
means one.
"""

MESSAGES_PER_STEP: Final = 8
"""Messages that one step requeues, where long work is counted (queues/steps.py)."""


@attrs.define
class SessionTotals:
    """Counts of one connection, for its log line."""

    messages_in_count: int = 0
    messages_out_count: int = 0
    bytes_in: int = 0


class StompSubscription(FlowResource):
    """A consumer of one or more destinations, under one subscription id of one connection."""

    repeats = False
    """Whether an unacknowledged message may be delivered once more."""
    upkeep_bytes = 1024
    """Attached to nothing: `AttachmentAccount` counts what that takes."""

    def __init__(
        self,
        hub: Hub,
        outbound: Outbound,
        spec: SubscriptionSpec,
        totals: SessionTotals,
    ) -> None:
        super().__init__(spec.label, ResourceKind.SUBSCRIPTION, hub.manager)
        self.key = spec.key
        self.subscription_id = spec.subscription_id
        self.destination = spec.destination
        self.ack = spec.ack
        self.rank = spec.rank
        self.ordered_only = spec.ordered_only
        self._totals = totals
        self.last_settled_seconds = hub.clock()
        self.attachments: list[Attachment | WildcardConsumer | DurableAttachment | Subscription] = []
        self._gate: Account | None = None
        """Account that the deliveries wait for while something holds them, see `hold`. It counts the holds."""
        self._idle_gate: Account | None = None
        """The same account behind its last hold, while queues that waited there continue in turn."""
        self._unpause: Callable[[], None] | None = None
        """Ends the hold of the client, see `pause`."""
        self.unsubscribed = False
        self.has_left = False
        """Whether the subscription has ended by UNSUBSCRIBE, and keeps only the deliveries that transactions hold."""
        self.selection: Selection | None = None
        """Messages that the selector admits; None: all."""
        self.owns_selection = True
        """Whether the selection ends with this subscription; otherwise it is that of another one, too."""
        self.slow = ""
        """Reason why it is a slow consumer, as the policy of a destination has it; empty: it is not."""
        self.give_up: Callable[[ProtocolError], None] = _nothing
        """Ends the connection with this error."""
        self.given_back = GivenBack()
        """Deliveries that ended subscriptions of the connection requeued."""
        self._bodies = hub.bodies
        self._meets_large = False
        """The last that was delivered had a large body: the next may have one, too."""
        self._hub = hub
        self._outbound = outbound
        self.token = hub.message_token
        """First part of the message-ids."""
        self._retained: RetainedShow | None = None
        """Shows what was retained for its topics before all else; None: nothing is left."""
        self._begin: Callable[[], None] | None = None
        """Ends the hold for it."""
        self._renderer = MessageRenderer(spec, self.token, outbound.framing, hub.ack_prefix)
        self.ledger: Ledger | None = None
        self.window: Account | None = None
        if spec.ack != ACK_AUTO:
            self.ledger = Ledger(by_number=spec.version != "1.2", repeats=self.repeats)
            prefetch_count, prefetch_bytes = spec.prefetch_count, spec.prefetch_bytes
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
        self.keep(3 * len(self._renderer.prefix))

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
        """Deliver nothing before the function that is returned is called. Of several holds each has to end."""
        gate = self._idle_gate if self._gate is None else self._gate
        if gate is None:
            gate = Account(
                self,
                Flow(f"holds of {self.name}"),
                WindowLimiter(1, None, clock=self._hub.clock),
                clock=self._hub.clock,
                counts_memory=False,
            )
        self._gate, self._idle_gate = gate, None
        gate.charge(1, 0, None)
        is_over = False

        def begin() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._let_go(gate)

        return begin

    def _let_go(self, gate: Account) -> None:
        is_last = gate.limiter.used_count == 1
        if is_last:
            self._gate = None
        if not self.is_open:
            return
        gate.release(1, 0)
        if is_last and not gate.blocks_somebody:
            gate.close()
        elif is_last:  # the queues of a wildcard continue one by one: all at once would be a long step
            self._idle_gate = gate

    @property
    def is_paused(self) -> bool:
        """Whether the client wants no deliveries for now."""
        return self._unpause is not None

    def pause(self) -> None:
        """Deliver nothing until `resume`. Again: does nothing."""
        if self._unpause is None:
            self._unpause = self.hold()

    def resume(self) -> None:
        """Deliver again, if `pause` was the reason not to."""
        if self._unpause is not None:
            unpause, self._unpause = self._unpause, None
            unpause()
            if self._retained is not None:
                self._retained.resume()

    # ------------------------------------------------------------------ the port of a watch over slow consumers

    @property
    def takes_of_several(self) -> bool:
        """Whether the credit is for several destinations."""
        return len(self.attachments) != 1 or isinstance(self.attachments[0], WildcardConsumer)

    def mark(self) -> int:
        """Return the ordinal of the next delivery; with ack `auto` the bytes that the peer has taken, -1 if it has
        taken all.
        """
        if self.ledger is not None:
            return self.ledger.next_ordinal
        return self._outbound.seen_bytes if self._outbound.waiting_bytes else -1

    def is_behind(self, mark: int, queues: Container[object]) -> bool:
        """Whether a delivery of these queues from before `mark` is unacknowledged; with ack `auto`: whether the peer
        has taken nothing since.
        """
        if self.ledger is not None:
            return self.ledger.has_older(mark, queues)
        return self._outbound.waiting_bytes > 0 and self._outbound.seen_bytes == mark

    # ------------------------------------------------------------------ retained messages

    @property
    def outbound(self) -> Outbound:
        """Bytes on their way to the client."""
        return self._outbound

    def begin_with(self, places: list[Place], environment: QueueEnvironment, begin: Callable[[], None]) -> None:
        """Show retained messages before all else; `begin` ends the hold for them."""
        if not places or self.unsubscribed:
            begin()
            return
        self._begin = begin
        self._retained = RetainedShow(self, self, places, environment)

    def show_retained(self, part: Slice, source: SourceController) -> None:
        """Write retained messages. They need no ACK."""
        count = len(part)
        self._totals.messages_out_count += count
        ordinal = 0 if self.ledger is None else self.ledger.skip(count)
        pieces = self._renderer.retained(part, ordinal)
        self._outbound.send_messages(pieces, sum(map(len, pieces)), source, _taken)

    def shown_retained(self) -> None:
        """Deliver the rest: all retained messages are on their way."""
        retained, self._retained = self._retained, None
        begin, self._begin = self._begin, None
        if retained is not None:
            retained.close()
        if begin is not None:
            begin()

    # ------------------------------------------------------------------ credit by request

    @property
    def _credited(self) -> Account | None:
        """Account of what may be out; None: there is no limit but the outbound."""
        return self.window

    @property
    def window_limits(self) -> tuple[int | None, int | None]:
        """Messages and bytes that may be unacknowledged; None: no limit. With ack `auto` there is none."""
        limiter = None if self._credited is None else self._credited.limiter
        if not isinstance(limiter, WindowLimiter):
            return None, None
        return limiter.capacity_count, limiter.capacity_bytes

    def set_credit(self, count: int, size_bytes: int | None) -> None:
        """Set other limits of what may be unacknowledged; `size_bytes` None: as before. What is out already stays out.
        With ack `auto` it has no effect.
        """
        account = self._credited
        if account is None:
            return
        limiter = account.limiter
        assert isinstance(limiter, WindowLimiter), "windows are"
        bytes_max = limiter.capacity_bytes if size_bytes is None else size_bytes
        express = 0 if self.window is None else EXPRESS_SHARE
        limiter.resize(
            count,
            bytes_max,
            headroom_count=count // express if express else 0,
            headroom_bytes=(bytes_max or 0) // express if express else 0,
        )
        account.poll()

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
            # Not the slice itself: a topic may drop its messages, and then no limiter is charged for them.
            sequences, wire_bytes, attempts = part.sequences, part.wire_bytes, part.attempts

            def settle(taken: bool) -> None:
                if taken:
                    subscription.settle(sequences, wire_bytes)
                    return
                # Messages that the kernel took whole have been seen, the one in the midst of being sent has failed.
                whole_count, is_cut = self._taken_of(subscription, sequences, attempts, 0, dropped_count, start_bytes)
                if seen := sequences[: whole_count + is_cut]:
                    subscription.requeue(seen, attempted=True, charged=seen[whole_count:])
                if unseen := sequences[len(seen) :]:
                    subscription.requeue(unseen, attempted=False)

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
            parts = self._renderer.frames(part, first_ordinal, dropped_count)
            self._outbound.send_messages(parts, sum(map(len, parts)), source, mark)
            return
        assert isinstance(last, LargeMessage), "others have their body with them"
        assert self._bodies is not None, "where else should it come from"
        pull = partial(self._bodies.read, last.body)
        [head] = self._renderer.frames_apart(part, first_ordinal, dropped_count)
        self._outbound.send_streamed(head, pull, last.body.length_bytes, b"\0", source, mark)

    def _up_to_large(self, subscription: Subscription, part: Slice) -> Slice:
        """Return the messages before the first large body, or that one message alone. The rest is requeued: its wires
        are short, but it would wait here for a long time while other consumers could have it.
        """
        first = up_to_large(part)
        self._meets_large = first is not part or part.messages[0].large is not None
        if first is not part:
            subscription.requeue(part.sequences[len(first) :], attempted=False)
        return first

    def cancelled(self, subscription: Subscription, reason: str) -> Iterator[None]:
        """Forget the deliveries of a deleted queue, and return their credit. Late ACKs of them are no mistake."""
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
        """Settle portions at the COMMIT of the transaction that holds them. Their credit was returned before."""
        assert self.ledger is not None, "only a ledger holds"
        self.ledger.finish_held(portion)
        if nack:
            _refuse(portion)
        else:
            portion.subscription.settle(portion.sequences, portion.wire_bytes)

    def release_held(self, portion: Portion) -> None:
        """Return portions at the ABORT of the transaction that held them: they are unacknowledged again, and count
        against the window.
        """
        assert self.ledger is not None, "only a ledger holds"
        if _comes_again(portion.subscription) and portion.subscription.closed:
            self._note_given_back(portion, self.ledger.numbers_of(portion))
        for released in self.ledger.release_held(portion):
            if self.has_left:
                numbers = self.ledger.numbers_of(released)
                for left in self.ledger.take(released.ordinals):
                    self._note_given_back(left, numbers)
                    left.subscription.requeue(left.sequences, attempted=True, charged=())
            elif self.window is not None and self.is_open:
                self.window.charge(len(released.sequences), released.wire_bytes, None)

    def settle(self, portions: list[Portion]) -> None:
        """Acknowledge the portions."""
        for portion in portions:
            self.refill(len(portion.sequences), portion.wire_bytes)
            portion.subscription.settle(portion.sequences, portion.wire_bytes)

    def reject(self, portions: list[Portion]) -> None:
        """Reject the portions (NACK): their messages are redelivered, here or elsewhere, or dead-lettered if the
        rejection is final.
        """
        for portion in portions:
            self.refill(len(portion.sequences), portion.wire_bytes)
            _refuse(portion)

    def ordinal_of_number(self, number: int) -> int | None:
        """Return the ordinal under which this message is unacknowledged here, None if it is not (or ACKs do not name it
        so).
        """
        return None if self.ledger is None else self.ledger.ordinal_of_number(number)

    def indexing_numbers(self) -> Iterator[None]:
        """Index deliveries by message number, so that `ordinal_of_number` works also where ACKs name ordinals. In steps
        the first time.
        """
        return iter(()) if self.ledger is None else self.ledger.indexing_numbers(self._number_of)

    def _number_of(self, subscription: Subscription, sequence: int) -> int:
        message = subscription.queue.elements.get(sequence)
        return -1 if message is None else message.number

    def unsettled_of(self, queues: Container[object]) -> int:
        """Return the number of unacknowledged deliveries of these queues. O(slices)."""
        return 0 if self.ledger is None else self.ledger.unsettled_of(queues)

    # ------------------------------------------------------------------ end

    def end_deliveries(self) -> None:
        """Deliver nothing from now on; `detaching` follows."""
        self.unsubscribed = True

    def detaching(self) -> Iterator[None]:
        """Detach the subscription in steps, the first of which ends deliveries. Unacknowledged deliveries stay in the
        ledger, except those of topics: a topic forgets a subscriber that has left, so its deliveries can't be
        acknowledged or requeued, unless the subscriber shares a durable subscription.
        """
        self.unsubscribed = True
        if self._retained is not None:
            self._retained.close()
            self._retained = None
        if self.ledger is not None:
            yield from self.ledger.seeking_worked_on()
            # Of a durable subscription, too, the message that its consumer broke over is charged, while it can be
            # requeued.
            portion = self.ledger.take_worked_on(_comes_again)
            if portion is not None:
                portion.subscription.requeue(portion.sequences, attempted=True)
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
        """Requeue unacknowledged deliveries of a detached subscription after UNSUBSCRIBE, in steps. Deliveries that an
        open transaction holds return if the transaction is aborted. Bytes that the kernel has not taken yet are still
        sent.
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
        if self.selection is not None and self.owns_selection:
            self.selection.close()
        super().close()

    def _note_given_back(self, portion: Portion, numbers: SequenceOf[int]) -> None:
        """Note requeued deliveries. `numbers`: as the ledger knows them; where it does not, those that can be found."""
        number_of, of = self._number_of, portion.subscription
        found = numbers or [number_of(of, sequence) for sequence in portion.sequences]
        there = [number for number in found if number >= 0]
        self.given_back.note(self.key, self.subscription_id, self.token, portion.ordinals, there)

    def returning_unsettled(self) -> Iterator[None]:
        """Requeue the deliveries of an ended connection, in steps. Detach the subscription before."""
        if self.ledger is not None:
            for portion, attempted in self.ledger.take_all():
                yield from _giving_back(portion, attempted=attempted)

    def circumstances(self) -> Circumstances:
        return Circumstances(self._outbound.name)

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"ack": self.ack}
        if self.selection is not None:
            facts["selector:"] = self.selection.words
        if self.slow:
            facts["slow:"] = self.slow
        if self.is_paused:
            facts["paused"] = "by its client"
        if self.ledger is not None:
            facts["unacked"] = self.ledger.unsettled_count
            if self.ledger.unsettled_count:
                facts["idle_seconds"] = self._hub.clock() - self.last_settled_seconds
        return facts

    def _taken_of(
        self,
        subscription: Subscription,
        sequences: SequenceOf[int],
        attempts: Mapping[int, int] | None,
        first_ordinal: int,
        dropped_count: int,
        start_bytes: int,
    ) -> tuple[int, bool]:
        """Return, for a slice that began at `start_bytes` and was unfinished when the connection broke, the number of
        frames that the kernel has taken whole, and whether it has taken part of the next one. O(n).

        The messages are looked up in their queue, which has them as long as they are unsettled. Where one is not in
        memory its frame counts as begun: better one charged in vain than a mark too few.
        """
        outbound = self._outbound
        if outbound.has_failed_at(start_bytes):
            return 0, True
        left_bytes = outbound.seen_bytes - start_bytes
        for place, sequence in enumerate(sequences):
            if left_bytes <= 0:
                return place, False
            message = subscription.queue.elements.get(sequence)
            if message is None:
                return place, True
            part = Slice([message], (sequence,), len(message.wire), dict(attempts) if attempts else None)
            [frame] = self._renderer.frames_apart(part, first_ordinal + place, dropped_count)
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


def _taken(_is_taken: bool) -> None:
    """Settle nothing: a retained message stays where it is."""


def _nothing(_error: ProtocolError) -> None:
    """Do nothing, for a subscription without a connection that could end."""


def _comes_again(subscription: Subscription) -> bool:
    """Whether all that is not settled comes again as soon as this one is closed: a durable one of a client id."""
    return subscription.durable_id is not None and not subscription.shares


def _refuse(portion: Portion) -> None:
    portion.subscription.requeue(
        portion.sequences, attempted=True, charged=portion.charged, refused=True, for_good=portion.for_good
    )


def _giving_back(portion: Portion, *, attempted: bool) -> Iterator[None]:
    """Requeue a portion, with as many steps as that costs."""
    portion.subscription.requeue(portion.sequences, attempted=attempted, charged=portion.charged)
    yield from repeat(None, 1 + len(portion.sequences) // MESSAGES_PER_STEP)
