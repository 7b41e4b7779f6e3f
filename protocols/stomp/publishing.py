"""SENDs on their way into a queue or a log, and the RECEIPTs that are due then.

A lane goes to one or the other; `QueuePublisher` and `LogPublisher` have the same three methods. The outcome never
depends on how the network cut the frames: what goes in before a message is refused goes in whatever came in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

from ...flow.latch import Latch
from ...flow.upkeep import UPKEEP_FULL, UPKEEP_REMEDY
from ...queues.atomic_offer import offer_together
from ...queues.full_actions import QueueFullError
from ...queues.intake import Run as QueueRun
from ...queues.logs.log import GONE, Log
from ...queues.logs.offers import RefusedSendError
from ...queues.message import MESSAGE_OVERHEAD_BYTES, Message, size_of, wire_bytes_of
from ...queues.names import parse
from ...queues.producers import NO_SEQUENCE, Origin, origin_of
from ...queues.registry import DestinationLimitError, DestinationRegistry
from ...queues.retained import SET, RetainedLimitError, retained_name
from ...queues.storage import DISK
from .errors import ProtocolError
from .frames import SendRun
from .head import SendHead
from .lanes import Lane, Lanes, ParkedRun
from .replies import MEMORY, Owed, Replies
from .routing import Router


class QueuePublisher:
    """Publishes the SENDs of one connection to queues and topics."""

    __slots__ = ("_lanes", "_registry", "_replies", "_router")

    def __init__(self, registry: DestinationRegistry, lanes: Lanes, router: Router, replies: Replies) -> None:
        self._registry = registry
        self._lanes = lanes
        self._router = router
        self._replies = replies

    def publish(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """Put messages into their queue, and see to the receipt: at once, or when what must be on disk is there. False:
        the queue has no room now, and will resume the lane. Raises ProtocolError if the queue refuses a message.
        """
        head = messages[0].head
        if origin_of(messages[0]) is not None:
            return self._publish_once(lane, messages, owed)
        if getattr(head, "retain", None) is not None:
            return self._publish_retained(lane, messages, size_bytes, owed)
        return self._publish(lane, messages, size_bytes, owed)

    def _publish_once(self, lane: Lane, messages: list[Message], owed: Owed | None) -> bool:
        """Publish the first of these messages, of one origin, unless it was before; the RECEIPT of one that was is as
        true as that of the first.
        """
        queue, message = lane.queue, messages[0]
        origin = origin_of(message)
        assert origin is not None, "asked for before"
        table = queue.open_producers()
        if table.knows(origin):
            table.seen_again(origin, len(messages))
            lane.sent_count += len(messages)
            self._confirm_again(lane, table.place_of(origin), owed, persistent=message.head.persistent)
            return True
        if not table.has(origin):
            self._check_producer(origin, queue.name, message, owed)
        first = queue.elements.next_sequence
        publish = self._publish if getattr(message.head, "retain", None) is None else self._publish_retained
        if not publish(lane, [message], len(message.wire), owed):
            return False
        queue.produced([message], first)
        table.duplicates_count += len(messages) - 1
        return True

    def _check_producer(self, origin: Origin, name: str, message: Message, owed: Owed | None) -> None:
        """Raise ProtocolError if there is no memory for one more producer."""
        try:
            self._registry.check_upkeep(f"producer {origin[0][:40]} of {name}")
        except DestinationLimitError as error:
            refusal = ProtocolError(error.code, str(error))
            headers = {"destination": message.head.destination}
            refusal.identify("SEND", headers if owed is None else {**headers, "receipt": owed.receipt_ids[0]})
            raise refusal from None

    def _confirm_again(self, lane: Lane, place: int, owed: Owed | None, *, persistent: bool) -> None:
        """Answer a SEND that is not taken, for it was before, as an element from `place` on."""
        queue = lane.queue
        if owed is None:
            self._replies.unconfirmed = self._replies.unconfirmed or queue.keeps
        elif not (queue.keeps and persistent):
            self._replies.leg_done(owed)
        elif place < 0:
            store = queue.environment.store
            assert store is not None, "what is kept is in a store"
            self._replies.leg_done(owed, store.durability)
        else:
            owed_bytes = owed.size_bytes
            self._replies.owe(owed_bytes)
            queue.when_saved(place, partial(self._saved, owed, owed_bytes))

    def _publish(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        if owed is None or not (lane.inlet.keeps and messages[0].head.persistent):
            if not self.offer(lane, messages, size_bytes, owed):
                return False
            if owed is None:
                self._replies.unconfirmed = self._replies.unconfirmed or lane.inlet.keeps
            else:
                self._replies.leg_done(owed)
            return True
        queue = lane.queue
        first = queue.elements.next_sequence
        if not self.offer(lane, messages, size_bytes, owed):
            return False
        owed_bytes = owed.size_bytes
        self._replies.owe(owed_bytes)
        queue.when_saved(first, partial(self._saved, owed, owed_bytes))
        return True

    def _publish_retained(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """Publish messages the last of which is retained for their topic, or after which nothing is. The RECEIPT says
        that this is on the disk, too.
        """
        head, message = messages[0].head, messages[-1]
        assert isinstance(head, SendHead), "others have nothing to say of it"
        topic, retained = lane.target.name, self._registry.retained
        is_set = head.retain == SET
        try:
            if message.large is not None:
                raise RetainedLimitError(f"the body is too large to be retained for {topic}: it would stay in a file")
            if is_set:
                retained.check(topic, message)
        except RetainedLimitError as error:
            raise _not_retained(error.code, str(error), head, owed) from None
        store = self._registry.environment_of(parse(retained_name(topic))).store
        waits = owed is not None and store is not None
        # Where the topic keeps nothing for durable subscriptions, the promise is that of the retained message.
        of_topic = owed if lane.inlet.keeps or not waits else None
        if waits and of_topic is not None:
            of_topic.legs_count += 1
        try:
            if not self._publish(lane, messages, size_bytes, of_topic):
                if waits and of_topic is not None:
                    of_topic.legs_count -= 1
                return False
            if is_set:
                queue, sequence = retained.set(topic, message)
                queues = [queue]
            else:
                queues, sequence = retained.remove(topic), 0
        except DestinationLimitError as error:
            raise _not_retained(error.code, str(error), head, owed) from None
        if not waits or owed is None:
            return True
        owed_bytes = owed.size_bytes
        self._replies.owe(owed_bytes)
        if is_set and head.persistent and queues[0].keeps:
            queues[0].when_saved(sequence, partial(self._saved, owed, owed_bytes))
            return True
        saved = partial(self._saved, owed, owed_bytes, DISK if head.persistent else MEMORY)
        storages = [queue.storage for queue in queues if queue.storage is not None]
        done = Latch(len(storages) + 1, saved)
        for storage in storages:
            storage.when_settled(done)
        done()
        return True

    def offer(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """Put messages into their queue; False: it has no room now, and will resume the lane. Raises ProtocolError if
        the queue refuses them, about the one of the `owed` that it refused first.
        """
        queue = lane.inlet
        if queue.rejects and not queue.fits(len(messages), size_bytes):
            return self._offer_one_by_one(lane, messages, owed)
        if not queue.offer(messages, size_bytes, lane.source):
            return False
        lane.sent_count += len(messages)
        return True

    def publish_committed(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """Put a part of a COMMIT into its queue, which must not refuse any of it. False: it has to wait on."""
        if origin_of(messages[0]) is not None:
            if not lane.queue.take_once(messages, partial(_take_together, lane)):
                return False
        elif not offer_together(
            lane.queue, [QueueRun(messages, size_bytes + MESSAGE_OVERHEAD_BYTES * len(messages))], lane.source
        ):
            return False
        self._replies.leg_done(owed)
        return True

    def deleted(self, parked: ParkedRun) -> None:
        """Drop SENDs whose queue is gone."""
        self._registry.unheard_count += len(parked.messages)
        self._replies.leg_done(parked.owed)

    def successor(self, lane: Lane, run: SendRun, forwarded: SendHead) -> Lane | None:
        """The lane to the destination that takes the place of a deleted one, made anew. None: that was temporary.
        Raises ProtocolError.
        """
        destination = self._router.destination(lane.destination.address, run)
        return None if destination is None else self._lanes.lane(destination, destination.queue_for(forwarded))

    def _saved(self, owed: Owed, owed_bytes: int, how: str) -> None:
        self._replies.leg_done(owed, how)
        self._replies.paid(owed_bytes)

    def _offer_one_by_one(self, lane: Lane, messages: list[Message], owed: Owed | None) -> bool:
        """Publish the part of a run that fits, as if its frames had come apart: the queue would refuse the run as a
        whole. Raises ProtocolError for the first message that does not fit. False: nothing was published, all has to
        wait.
        """
        queue = lane.queue
        count = size_bytes = 0
        for message in messages:
            if not queue.fits(count + 1, size_bytes + len(message.wire)):
                break
            count += 1
            size_bytes += len(message.wire)
        if count and not queue.offer(messages[:count], size_bytes, lane.source):
            return False
        message = messages[count]
        try:
            if not count:
                return queue.offer([message], len(message.wire), lane.source)
            queue.add([message], len(message.wire), lane.source)  # whether or not the others have shut its gate
            raise AssertionError(f"{queue.name} has taken what does not fit")
        except QueueFullError as refusal:
            error = ProtocolError("queue-full", str(refusal), "The destination's full policy is reject.")
            headers = {"destination": message.head.destination}
            if owed is not None:
                # Nothing can follow the ERROR, so of what is not on disk yet nothing is promised.
                if owed.legs_count == 1 and not (queue.keeps and message.head.persistent):
                    self._replies.receipts(owed.receipt_ids[:count])
                headers["receipt"] = owed.receipt_ids[count]
            error.identify("SEND", headers)
            raise error from None


class LogPublisher:
    """Appends the SENDs of one connection to logs."""

    __slots__ = ("_fail", "_lanes", "_replies")

    def __init__(self, lanes: Lanes, replies: Replies, fail: Callable[[ProtocolError], None]) -> None:
        """Make a publisher. `fail`: end the connection with this error, found when no frame of it is being read."""
        self._lanes = lanes
        self._replies = replies
        self._fail = fail

    def publish(self, lane: Lane, messages: list[Message], size_bytes: int, owed: Owed | None) -> bool:
        """Publish as `QueuePublisher.publish` does: the receipt tells the index, and is sent when the records are as
        safe as the log promises. Raises ProtocolError for an invalid batch.
        """
        log = lane.log
        origin = origin_of(messages[0])
        try:
            if origin is not None:
                if (done := self._known(lane, messages, origin, owed)) or not log.offer_once(messages, lane.source):
                    return done
            elif not log.offer(messages, size_bytes, lane.source):
                return False
        except RefusedSendError as refusal:
            if good := refusal.good:
                log.offer(good, wire_bytes_of(good), lane.source)
            raise refused_by_log(refusal, messages, owed) from None
        lane.sent_count += len(messages)
        if owed is None:
            self._replies.unconfirmed_logs.add(log)
            return True
        owed_bytes = owed.size_bytes
        self._replies.owe(owed_bytes)
        appended = partial(self._appended, log, owed, owed_bytes)
        if origin is not None and len(messages) > 1:  # the others are the same SEND
            count = len(messages)
            log.when_durable(lambda how, indexes: appended(how, list(indexes) * count))
        else:
            log.when_durable(appended)
        return True

    def _known(self, lane: Lane, messages: list[Message], origin: Origin, owed: Owed | None) -> bool:
        """Return whether the log has a SEND of this origin: then its RECEIPT comes when that of the first one may, and
        tells the same index, if that is still known. Raises ProtocolError for an origin that can't be noted.
        """
        log, producers = lane.log, lane.log.open_producers()
        if (refusal := refused_origin(log, origin)) is not None:
            headers = {"destination": messages[0].head.destination}
            refusal.identify("SEND", headers if owed is None else {**headers, "receipt": owed.receipt_ids[0]})
            raise refusal
        if not producers.knows(origin):
            return False
        producers.seen_again(origin, len(messages))
        lane.sent_count += len(messages)
        if owed is None:
            self._replies.unconfirmed_logs.add(log)
        else:
            owed_bytes = owed.size_bytes
            self._replies.owe(owed_bytes)
            log.when_settled(partial(self._appended_before, log, origin, owed, owed_bytes))
        return True

    def _appended_before(self, log: Log, origin: Origin, owed: Owed, owed_bytes: int) -> None:
        if log.is_deleted:
            self._appended(log, owed, owed_bytes, GONE, ())
            return
        place = log.open_producers().place_of(origin)
        indexes = [] if place is None else [place] * len(owed.receipt_ids)
        self._appended(log, owed, owed_bytes, log.promise, indexes)

    def checking(self, lane: Lane, messages: list[Message], size_bytes: int) -> Generator[object, None, list[Message]]:
        """`Log.checking`; these count as memory meanwhile. Raises RefusedSendError."""
        account = self._lanes.unfinished
        account.charge(0, size_bytes, None)
        try:
            return (yield from lane.log.checking(messages))
        finally:
            account.release(0, size_bytes)

    def deleted(self, parked: ParkedRun) -> None:
        """Refuse SENDs whose log is gone: the sender must know."""
        self._fail(_log_is_gone(parked.owed))

    def successor(self, lane: Lane, run: SendRun, forwarded: SendHead) -> Lane | None:
        """A deleted log has none: another one under its name is not the log that was meant. Raises ProtocolError."""
        raise _log_is_gone(None if run.receipts is None else Owed(run.receipts, 1))

    def _appended(self, log: Log, owed: Owed, owed_bytes: int, how: str, indexes: Sequence[tuple[int, int]]) -> None:
        if how == GONE:
            self._replies.paid(owed_bytes)
            self._fail(_log_is_gone(owed))
            return
        if owed.is_single and indexes:
            self._replies.appended(owed.receipt_ids, how, indexes, log.partition)
        else:
            if indexes:
                owed.indexes.append((log.name, indexes))
            self._replies.leg_done(owed, how)
        self._replies.paid(owed_bytes)


def _take_together(lane: Lane, messages: list[Message]) -> bool:
    return offer_together(lane.queue, [QueueRun(messages, size_of(messages))], lane.source)


def refused_origin(log: Log, origin: Origin) -> ProtocolError | None:
    """Return the error for an origin that a log can't note; None: it can."""
    if origin[1] == NO_SEQUENCE:
        return ProtocolError(
            "not-supported",
            f"_AMQ_DUPL_ID of a SEND to {log.name}: logs know producers, not single messages",
            "Send producer-id and producer-sequence in place of it.",
        )
    if not log.open_producers().has(origin[0]):
        why_not = log.manager.why_not(f"producer {origin[0][:40]} of {log.name}")
        if why_not:
            return ProtocolError(UPKEEP_FULL, f"{why_not}. {UPKEEP_REMEDY}")
    return None


def refused_by_log(refusal: RefusedSendError, messages: list[Message], owed: Owed | None) -> ProtocolError:
    """Make the ERROR about the message that a log can't take."""
    place = refusal.place
    if refusal.is_unchecked:
        error = ProtocolError("INTERNAL_ERROR", str(refusal), "Nothing of it was appended: send it again later.")
    else:
        code = "MESSAGE_SIZE_TOO_LARGE" if refusal.too_large else "bad-batch"
        error = ProtocolError(code, str(refusal), "Nothing of it was appended. See the reference of logs.")
    headers = {"destination": messages[place].head.destination}
    error.identify("SEND", headers if owed is None else {**headers, "receipt": owed.receipt_ids[place]})
    return error


def _not_retained(code: str, message: str, head: SendHead, owed: Owed | None) -> ProtocolError:
    error = ProtocolError(code, message, "It was not published either.")
    headers = {"destination": head.destination}
    error.identify("SEND", headers if owed is None else {**headers, "receipt": owed.receipt_ids[0]})
    return error


def _log_is_gone(owed: Owed | None) -> ProtocolError:
    """The ERROR for SENDs that were on their way to a log when it was deleted."""
    error = ProtocolError("TOPIC_NOT_EXIST", "the log was deleted before it had taken this", "Send it again.")
    error.identify("SEND", {} if owed is None or not owed.receipt_ids else {"receipt": owed.receipt_ids[0]})
    return error
