"""Actions on a broker: pause, purge, publish, move, retry, close, seek, drain, reload, and on shards of its cluster.
Permissions are checked elsewhere.

An action on many messages works in portions, with traffic in between, on the messages that existed at its beginning. An
action that takes too long is cut; finished portions stay done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from sluiceway.admin.done import Done
from sluiceway.admin.errors import ApiError, bad_request, conflict, not_found
from sluiceway.cluster.owner_records import ClusterRecordError
from sluiceway.cluster.ownership import NotMovableError
from sluiceway.flow import Flow, FlowClosedError, SourceController
from sluiceway.flow.kinds import ResourceKind
from sluiceway.flow.latch import Latch
from sluiceway.flow.words import age_in_words, count_in_words
from sluiceway.protocols.stomp.authorization import ForbiddenError, Identity
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.protocols.stomp.header_codec import rewrite
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.dead_letters import FarQueue
from sluiceway.queues.destination import Destination
from sluiceway.queues.durables import Durable
from sluiceway.queues.full_actions import QueueFullError
from sluiceway.queues.message import Message
from sluiceway.queues.names import DestinationNameError, Kind, host_prefix_of, parse, without_host
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.registry import DestinationLimitError
from sluiceway.queues.topic import Topic
from sluiceway.queues.transfers import Outcome, Transfer
from sluiceway.reloading import ReloadError
from sluiceway.store.compare_and_set import MetadataError
from sluiceway.views.destinations import backlog_count

if TYPE_CHECKING:
    from sluiceway.admin.messages import Found, MessageReader
    from sluiceway.broker import Broker
    from sluiceway.cluster.host import Member

ROOM_SECONDS: Final = 5.0
"""Time for which a move waits for room in the other queue."""
DRAIN_SECONDS: Final = 60.0

PURGE_COUNT: Final = 256
"""Messages that are purged in one step."""

LETTER_HEADERS: Final = (
    "dead-letter-reason",
    "dead-letter-destination",
    "dead-letter-count",
    "dead-letter-time",
    "dead-letter-subscription",
    "dead-letter-client-id",
)


@attrs.define(slots=True)
class _Tally:
    moved_count: int = 0
    left_count: int = 0
    """Number of messages for which there was no room."""
    skipped_count: int = 0
    """Number of messages that have no way back."""
    why: str = ""


class _Room:
    """Waits until there is room in another queue."""

    __slots__ = ("_came",)

    def __init__(self) -> None:
        self._came: trio.Event | None = None

    def is_there(self) -> bool:
        """Report room. Returns whether the action waits for it: between two portions of a long walk it does not, and
        other sources may send.
        """
        if self._came is None:
            return False
        self._came.set()
        return True

    async def wait(self, seconds: float) -> bool:
        """Whether there is room within that time."""
        came = self._came = trio.Event()
        try:
            with trio.move_on_after(seconds):
                await came.wait()
        finally:
            self._came = None
        return came.is_set()


MoveTarget = tuple[MessageQueue | FarQueue, dict[str, str | None]]
"""Queue of a message, and its headers to set or remove."""
CARRIED_COUNT: Final = 32
"""Messages of one action that are on their way to another hub at a time."""


class Operations:
    """Actions on one broker."""

    def __init__(self, broker: Broker, reader: MessageReader) -> None:
        self._broker = broker
        self._reader = reader

    # ------------------------------------------------------------------ pause

    def pause(self, destination: Destination) -> Done:
        """Deliver nothing from it until `resume`, or until the broker ends."""
        destination.pause()
        return Done(
            {"paused": True},
            f"{destination.name} is paused: it takes messages until it is full, and delivers none. "
            "A restart of the broker ends that.",
        )

    def resume(self, destination: Destination) -> Done:
        """Deliver again."""
        destination.unpause()
        return Done({"paused": False}, f"{destination.name} delivers again.")

    # ------------------------------------------------------------------ purge

    async def purge(self, destination: Destination, numbers: frozenset[int] | None = None) -> Done:
        """Drop the present messages that no consumer holds: those of these numbers, or (None) all."""
        if numbers is not None:
            return await self._drop(destination, set(numbers))
        purged_count = 0
        for queue in destination.queues:
            consumed = consumed_queue(queue, destination.name, "purged")
            elements = consumed.elements
            end = elements.next_sequence
            position = elements.first_live(0)
            while position < end and not consumed.closed:
                stop = min(end, (position // PURGE_COUNT + 1) * PURGE_COUNT)
                purged_count += consumed.removal.purge(position, stop)
                await trio.lowlevel.checkpoint()
                position = elements.first_live(stop)
        left_count = sum(queue.unsettled_count for queue in destination.queues)
        words = f"{count_in_words(purged_count, 'message')} of {destination.name} dropped."
        if left_count:
            words += f" {count_in_words(left_count, 'message')} held by consumers stayed with them."
        return Done({"purged_count": purged_count, "unsettled_count": left_count}, words)

    async def _drop(self, destination: Destination, wanted: set[int]) -> Done:
        wanted_count, purged_count = len(wanted), 0
        for queue in sorted(destination.queues, key=lambda queue: -queue.priority):
            consumed = consumed_queue(queue, destination.name, "dropped")
            async with aclosing(self._reader.walk(queue, 0, queue.elements.next_sequence)) as walk:
                async for run in walk:
                    for sequence, message in run:
                        if message.number in wanted:
                            wanted.discard(message.number)
                            purged_count += consumed.removal.purge(sequence, sequence + 1)
                    if not wanted:
                        break
            if not wanted:
                break
        words = f"{count_in_words(purged_count, 'message')} of {destination.name} dropped."
        if purged_count < wanted_count:
            words += f" {count_in_words(wanted_count - purged_count, 'message')} left out: a consumer has them."
        return Done({"purged_count": purged_count, "unsettled_count": wanted_count - purged_count}, words)

    # ------------------------------------------------------------------ publish

    def publish(self, to: str, headers: dict[str, str], body: bytes) -> Done:
        """Put a message into a queue or a topic. Raises ApiError: no sender waits here for room."""
        name = self.place(to)
        manager = self._broker.manager
        try:
            base = SendHead({"destination": name}, b"", "1.2")
            base.count(manager.heads_account)
            length = str(len(body))
            head = base.with_headers({**headers, "destination": without_host(name), "content-length": length})
        except ProtocolError as error:
            raise bad_request(error.message, error.detail) from None
        message = Message(head, head.block + b"\n\n" + body + b"\0", self._broker.shards.take_numbers(1))
        queue = self._queue_for(name, message)
        if isinstance(queue, Topic) and not queue.is_heard:
            raise conflict("unheard", f"{name} has no subscriber: the message would be dropped")
        source = SourceController(
            self._reader, Flow(f"published to {name}"), on_resume=lambda _sink: False, clock=self._broker.clock
        )
        try:
            accepted = queue.offer([message], len(message.wire), source)
        except (QueueFullError, FlowClosedError):
            accepted = False
        finally:
            source.close()
        if not accepted:
            raise conflict("no-room", f"{name} has no room now", "Try again when its consumers have taken some.")
        message_id = f"{self._broker.shards.token.decode()}-{message.number}"
        return Done({"message_id": message_id}, f"Message {message_id} is in {name}.")

    # ------------------------------------------------------------------ move and retry

    async def move(self, destination: Destination, to: str, numbers: frozenset[int] | None) -> Done:
        """Move messages to another destination: the numbered ones, or (None) all that no consumer holds."""
        target = self.place(to)
        try:
            self._broker.registry.check_prefix(parse(target), to_send=True)
        except DestinationNameError as error:
            raise bad_request(str(error)) from None
        if target == destination.name:
            raise bad_request(f"{target} is where they are", "Name another destination.")

        def place(message: Message) -> MoveTarget:
            return self._target(target, message), {"destination": without_host(target)}

        tally = await self._transfer(destination, numbers, place)
        return self._told(tally, f"moved from {destination.name} to {target}")

    async def retry(
        self,
        destination: Destination,
        numbers: frozenset[int] | None,
        *,
        republish: bool,
        may_send: Callable[[str], bool],
    ) -> Done:
        """Return dead letters to their original destinations: the numbered ones, or (None) all. A message that a
        subscription of a topic rejected goes to the topic only if `republish`: all of its subscribers would get it
        again. `may_send`: whether the caller may send to a destination: any client can have sent a message here that
        claims an origin.
        """

        def place(message: Message) -> MoveTarget | str:
            head: Any = message.head
            headers: dict[str, str] = head.headers
            origin = headers.get("dead-letter-destination")
            if origin is None:
                return "some do not say where they came from"
            if headers.get("dead-letter-subscription") is not None and not republish:
                return "some were refused by a subscription of a topic, and would come to all others again (republish)"
            try:
                name = self.place(origin)
                if host_prefix_of(name):  # no client can have sent to it: such headers say no host
                    return "some say that they came from where nothing can be sent to"
                name = host_prefix_of(destination.name) + name
            except ApiError:
                return "some say that they came from where nothing can be sent to"
            if name == destination.name:
                return "some say that they came from here"
            if not may_send(name):
                return f"you may not send to {name}"
            return self._target(name, message), {"destination": without_host(name), **dict.fromkeys(LETTER_HEADERS)}

        tally = await self._transfer(destination, numbers, place)
        return self._told(tally, f"retried from {destination.name}")

    @staticmethod
    def place(name: str) -> str:
        """The full name of somewhere to move to, which permissions are asked for. Raises ApiError."""
        try:
            address = parse(name)
        except DestinationNameError as error:
            raise bad_request(str(error)) from None
        if (
            "," in name
            or address.wildcard
            or address.temporary_local
            or address.temporary_global
            or address.kind is Kind.LOG
        ):
            raise bad_request(f"nothing can be moved to {name[:200]!r}", "Name a queue or a topic in full.")
        return address.canonical

    def _target(self, name: str, message: Message) -> MessageQueue | FarQueue:
        """Return the queue of this name for a message, also one of another hub. Raises ApiError."""
        courier = self._broker.shards.courier
        return FarQueue(name) if courier is not None and courier.has(name) else self._queue_for(name, message)

    def _queue_for(self, name: str, message: Message) -> MessageQueue:
        try:
            return self._broker.registry.get(parse(name)).partition_for(message.head)
        except DestinationLimitError as error:
            raise conflict(error.code, str(error)) from None

    async def _transfer(
        self, destination: Destination, numbers: frozenset[int] | None, place: Callable[[Message], MoveTarget | str]
    ) -> _Tally:
        tally = _Tally()
        wanted = None if numbers is None else set(numbers)
        for queue in sorted(destination.queues, key=lambda queue: -queue.priority):
            consumed = consumed_queue(queue, destination.name, "moved")
            room = _Room()
            transfer = Transfer(
                consumed,
                rewrite=rewrite,
                clock=self._broker.clock,
                now_ms=self._broker.now_ms,
                on_room=room.is_there,
            )
            try:
                async with aclosing(self._reader.walk(queue, 0, queue.elements.next_sequence)) as walk:
                    async for run in walk:
                        if wanted is not None:
                            run = [found for found in run if found[1].number in wanted]
                            wanted -= {message.number for _sequence, message in run}
                        if not await self._move_run(transfer, run, place, tally, room):
                            return tally
                        if wanted is not None and not wanted:
                            return tally
            finally:
                transfer.close()
        return tally

    async def _move_run(
        self,
        transfer: Transfer,
        run: list[Found],
        place: Callable[[Message], MoveTarget | str],
        tally: _Tally,
        room: _Room,
    ) -> bool:
        """Move these. False: there is no room for the rest, and there will be none soon."""
        while run:
            left: list[Found] = []
            far: list[tuple[int, Message, FarQueue, dict[str, str | None]]] = []
            for at, (sequence, message) in enumerate(run):
                target = place(message)
                if isinstance(target, str):
                    tally.skipped_count += 1
                    tally.why = target
                    continue
                queue, headers = target
                if isinstance(queue, FarQueue):
                    far.append((sequence, message, queue, headers))
                    continue
                outcome = transfer.move(sequence, message, queue, headers)
                if outcome is Outcome.MOVED:
                    tally.moved_count += 1
                elif outcome is Outcome.UNHEARD:
                    tally.skipped_count += 1
                    tally.why = f"{queue.name} has no subscribers"
                elif outcome is Outcome.NO_ROOM:
                    left = run[at:]
                    tally.why = f"{queue.name} has no room"
                    break
            transfer.flush()
            for start in range(0, len(far), CARRIED_COUNT):
                if not await self._carry(transfer, far[start : start + CARRIED_COUNT], tally):
                    tally.left_count += len(far[start + CARRIED_COUNT :]) + len(left)
                    return False
            if left:
                if not transfer.source.blocked or not await room.wait(ROOM_SECONDS):
                    tally.left_count += len(left)
                    return False
                tally.why = ""
            run = left
        return True

    async def _carry(
        self, transfer: Transfer, far: list[tuple[int, Message, FarQueue, dict[str, str | None]]], tally: _Tally
    ) -> bool:
        """Move these to other hubs, and wait until they are there. False: some could not be moved."""
        courier = self._broker.shards.courier
        assert courier is not None, "it has said that they are far"
        all_done = trio.Event()
        failed_count = 0

        def carried(why_not: str) -> None:
            nonlocal failed_count
            if why_not:
                failed_count += 1
                tally.why = why_not
            else:
                tally.moved_count += 1
            one_done()

        one_done = Latch(len(far) + 1, all_done.set)
        for sequence, message, queue, headers in far:
            if not transfer.carry(sequence, message, queue, headers, courier, carried):
                tally.skipped_count += 1
                tally.why = f"what is delayed, or has a large body, can't go to {queue.name} at another hub"
                one_done()
        one_done()
        await all_done.wait()
        tally.left_count += failed_count
        return not failed_count

    @staticmethod
    def _told(tally: _Tally, what: str) -> Done:
        words = f"{count_in_words(tally.moved_count, 'message')} {what}."
        if tally.skipped_count:
            words += f" {count_in_words(tally.skipped_count, 'message')} left out: {tally.why}."
        elif tally.left_count:
            words += f" The rest stays: {tally.why}. Try again when there is some."
        done = {
            "moved_count": tally.moved_count,
            "skipped_count": tally.skipped_count,
            "complete": not (tally.skipped_count or tally.left_count),
        }
        return Done(done, words)

    # ------------------------------------------------------------------ connections, groups, the broker

    def close_connection(self, session_id: str) -> Done:
        """End a connection with an ERROR. Raises ApiError if there is none of that session."""
        for connection in list(self._broker.connections):
            session = connection.session
            if session.session_id == session_id:
                held_count = session.unsettled_count
                session.fail(
                    ProtocolError(
                        "closed-by-operator",
                        "an operator has closed this connection",
                        "Ask the operator of the broker for the reason before you connect again.",
                    ),
                    peers_fault=False,
                )
                return Done(
                    {"closed": True, "returned_count": held_count},
                    f"The connection from {session.peer} is closed; {count_in_words(held_count, 'message')} that it "
                    "held go to others.",
                )
        raise not_found(f"no connection has session {session_id[:40]!r}", "Ask for /api/v1/connections.")

    async def seek_group(self, log: str, group: str, to: str | int, identity: Identity) -> Done:
        """Move a group of a log to a place: earliest, latest, next, an index, time:MS. `log`: its full name. Raises
        ApiError.
        """
        answered = trio.Event()
        answers: list[bytes | ForbiddenError] = []

        def take(data: bytes | ForbiddenError) -> None:
            answers.append(data)
            answered.set()

        request = json.dumps({"log": log, "group": group, "to": to}).encode()
        self._broker.requests.answer("/sluiceway/log/seek", request, take, identity)
        await answered.wait()
        if isinstance(answers[0], ForbiddenError):
            raise answers[0]
        answer = json.loads(answers[0])
        if not answer.get("ok"):
            code = str(answer.get("error", "refused")).lower().replace("_", "-")
            raise conflict(code, str(answer.get("message", "it was refused")), "Ask for /api/v1/logs.")
        return Done({"front": answer["front"]}, f"Group {group} of {log} continues from {answer['front']}.")

    async def remove_durable(self, durable: Durable) -> Done:
        """End a durable subscription, with the messages that only it still needs. Raises ApiError."""
        if durable.attached:
            raise conflict(
                "in-use",
                f"durable subscription {durable.label} has a consumer",
                "Close its connection first, or let the client unsubscribe.",
            )
        registry = self._broker.registry
        waiting_count = backlog_count(self._broker, durable)
        answered = trio.Event()
        faults: list[Exception] = []

        def removed(error: Exception | None) -> None:
            if error is not None:
                faults.append(error)
            answered.set()

        registry.remove_durable(durable, removed)
        await answered.wait()
        if faults:
            raise conflict(
                "not-stored", f"{durable.label} can't be removed from the disk: {faults[0]}", "It is there as before."
            )
        return Done(
            {"removed": True, "backlog_count": waiting_count},
            f"Durable subscription {durable.label} of {durable.destination} is removed; "
            f"{count_in_words(waiting_count, 'message')} waited for it.",
        )

    def drain(self, seconds: float | None) -> Done:
        """Let consumers finish, then stop the broker. Raises ApiError if the broker is stopping already."""
        if self._broker.is_stopping or self._broker.is_draining:
            raise conflict("stopping", "the broker is being drained, or stops already")
        limit_seconds = DRAIN_SECONDS if seconds is None else seconds
        ended_count = self._broker.drain(limit_seconds)
        return Done(
            {"ended_connections_count": ended_count, "seconds": limit_seconds},
            f"The broker takes no new connections, and stops when its consumers are done, after "
            f"{age_in_words(limit_seconds)} at most. {count_in_words(ended_count, 'connection')} that only sent ended.",
        )

    def member(self) -> Member:
        """Return the part of this broker in its cluster. Raises ApiError if it is in none."""
        member = self._broker.member
        if member is None:
            raise not_found(
                "this broker is no hub of a cluster",
                "Several processes: sluiceway serve --hubs N. Several machines: set [cluster].",
            )
        return member

    async def move_shard(self, shard: int, hub: str) -> Done:
        """Have a shard move to a hub, and stay there; an empty name leaves the choice to the cluster. Raises
        ApiError.
        """
        member = self.member()
        shards_count = member.seat.shards_count
        if shard >= shards_count:
            raise not_found(f"there is no shard {shard}", f"The cluster has shards 0 to {shards_count - 1}.")
        try:
            await member.move(shard, hub)
        except NotMovableError as error:
            raise conflict("not-movable", str(error), "Ask for /api/v1/cluster.") from None
        except (MetadataError, ClusterRecordError) as error:
            raise ApiError(
                503, "not-agreed", f"shard {shard} was not moved: {error}", "Try again in a while."
            ) from None
        to = hub or member.ownership.wanted_at(shard)
        return Done({"shard": shard, "hub": to}, f"Shard {shard} moves to {to}." if to else f"Shard {shard} is free.")

    def drain_hub(self) -> Done:
        """Hand the shards of this hub over; its clients stay. Raises ApiError."""
        member = self.member()
        try:
            member.drain()
        except NotMovableError as error:
            raise conflict("not-movable", str(error), "Ask for /api/v1/cluster.") from None
        hub, shards_count = member.seat.hub, len(member.open_shards)
        if any(other.weight > 0 for other in member.ownership.hubs.values() if other.name != hub):
            what = f"hands {count_in_words(shards_count, 'shard')} over"
        else:
            what = f"keeps {count_in_words(shards_count, 'shard')} until there is a hub that takes them"
        return Done(
            {"hub": hub, "shards_count": shards_count},
            f"{hub} {what}, and takes none until it is resumed, or starts anew. Its clients stay.",
        )

    def resume_hub(self) -> Done:
        """Have this hub take shards again. Raises ApiError."""
        member = self.member()
        member.resume()
        return Done({"hub": member.seat.hub}, f"{member.seat.hub} takes shards again.")

    async def reload(self) -> Done:
        """Read the settings again. Raises ApiError if they can't be used."""
        try:
            report = await self._broker.reload_from_source()
        except ReloadError as error:
            raise conflict("not-reloaded", str(error), "Nothing has changed. Fix the file, and try again.") from None
        words = f"{count_in_words(len(report.changed), 'setting')} changed."
        if report.needs_restart:
            words += f" These need a restart: {', '.join(report.needs_restart)}."
        return Done({"changed": list(report.changed), "needs_restart": list(report.needs_restart)}, words)


def consumed_queue(queue: MessageQueue, name: str, what: str) -> ConsumedQueue:
    """Return the queue of a destination whose messages are consumed. Raises ApiError for a topic."""
    if not isinstance(queue, ConsumedQueue) or queue.kind is ResourceKind.DELAY_QUEUE:
        raise conflict(
            "not-a-queue",
            f"{name} is a topic: its messages belong to its readers, and can't be {what}",
            "To be rid of a backlog, remove the durable subscription that it waits for.",
        )
    return queue
