"""Browsing of messages: the contents of a queue, one whole message, dead letters by reason. Nothing is taken or marked.

Messages are read where they lie: in memory, or a block at a time from the store for this answer alone, which leaves the
block outside. What is read so is charged while it is looked at, and only so many look at a time.

A *place* (`4.1024`: priority, sequence; `4-3.1024`: in part 3 of a partitioned queue) says where a message lies; a page
begins at a place; if its message is gone by then, the page begins with the next one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import trio

from sluiceway.admin.errors import ApiError, bad_request, not_found
from sluiceway.admin.previews import PREVIEW_LENGTH, as_text, preview
from sluiceway.admin.tables import Row
from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from sluiceway.flow.kinds import ResourceKind
from sluiceway.queues.cursored import BLOCK_BITS
from sluiceway.queues.destination import Destination
from sluiceway.queues.large import LargeMessage
from sluiceway.queues.message import Message, size_of
from sluiceway.queues.queue import MessageQueue
from sluiceway.views.destinations import figure

if TYPE_CHECKING:
    from sluiceway.loop_monitor import LoopMonitor
    from sluiceway.shards import Shards
    from sluiceway.steps import StepPace

READERS_MAX: Final = 4
READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of paged-out blocks that all readers should hold together; shown on the flow map."""
BODY_BYTES_MAX: Final = 256 * 1024
"""Maximum of bytes shown of one message's body."""
SEARCH_COUNT_MAX: Final = 20_000
"""Messages that are looked at to find one by its id, or by a text."""
SEARCH_BYTES: Final = 8 * 1024
"""Bytes of each message that a text is searched in."""
LETTERS_MAX: Final = 2_000
"""Dead letters of one queue that are looked at for their reasons."""
RUN_COUNT: Final = 64
"""Messages that are looked at in one go."""

Found = tuple[int, Message]
"""A message and its sequence."""


class MessageReader(FlowResource):
    """Reads messages of queues without taking any. One per admin server."""

    def __init__(self, manager: FlowManager) -> None:
        super().__init__("admin reading", ResourceKind.BROWSER, manager)
        self._readers = trio.CapacityLimiter(READERS_MAX)
        self._held = Account(
            self, Flow("what the admin port reads"), SizeLimiter(READ_BYTES_MAX, clock=manager.clock),
            clock=manager.clock,
        )  # fmt: skip

    async def walk(self, queue: MessageQueue, position: int, end: int) -> AsyncGenerator[list[Found], None]:
        """Yield the live elements from `position` to `end - 1` in order, some at a time. Close the generator
        afterwards.
        """
        async with self._readers:
            while not queue.closed:
                position = queue.elements.first_live(position)
                if position >= end:
                    return
                index = position >> BLOCK_BITS
                stop = min(end, (index + 1) << BLOCK_BITS)
                block = queue.elements.block(index)
                assert block is not None, "something in it is alive"
                if block.outside is None:
                    while position < stop:
                        run = [
                            (sequence, message)
                            for sequence in range(position, min(stop, position + RUN_COUNT))
                            if (message := queue.elements.get(sequence)) is not None
                        ]
                        position += RUN_COUNT
                        if run:
                            yield run
                        await trio.lowlevel.checkpoint()
                    position = stop
                    continue
                found = await self._load(queue, index)
                charge = len(found), size_of(found.values())
                self._held.charge(*charge, None)
                try:
                    wanted = [sequence for sequence in sorted(found) if position <= sequence < stop]
                    for start in range(0, len(wanted), RUN_COUNT):
                        run = [
                            (sequence, found[sequence])
                            for sequence in wanted[start : start + RUN_COUNT]
                            if queue.elements.is_alive(sequence)
                        ]
                        if run:
                            yield run
                        await trio.lowlevel.checkpoint()
                finally:
                    self._held.release(*charge)
                position = stop

    async def _load(self, queue: MessageQueue, index: int) -> dict[int, Message]:
        storage = queue.storage
        assert storage is not None, "where else should it be"
        arrived = trio.Event()
        result: dict[int, Message] = {}

        def take(_index: int, found: dict[int, Message]) -> None:
            result.update(found)
            arrived.set()

        storage.load(index, take)
        await arrived.wait()
        return result


class Messages:
    """Answers about messages."""

    def __init__(
        self,
        shards: Shards,
        pulse: LoopMonitor,
        reader: MessageReader,
        pace: StepPace,
        *,
        dead_letter_queues: Callable[[], Iterable[str]],
        clock: Callable[[], float],
    ) -> None:
        """`pulse` knows how old messages are; `dead_letter_queues` gives their names."""
        self._shards = shards
        self._pulse = pulse
        self._reader = reader
        self._pace = pace
        self._dead_letter_queues = dead_letter_queues
        self._clock = clock

    async def messages(self, destination: Destination, start: str, limit: int, text: str = "") -> Row:
        """Return some messages of a queue or a topic in the order of their delivery: the highest priority first.
        `text`: only messages with this text in their first SEARCH_BYTES, headers or body, upper or lower case; the
        answer ends after SEARCH_COUNT_MAX messages.
        """
        items: list[Row] = []
        looked_count = 0
        wanted = text.lower().encode()
        async with aclosing(self._from(destination, start)) as walk:
            async for queue, run in walk:
                for sequence, message in run:
                    if len(items) == limit or looked_count == SEARCH_COUNT_MAX:
                        place = _place_of(queue, sequence)
                        return {"items": items, "next": place, "looked_count": looked_count}
                    looked_count += 1
                    if not wanted or wanted in message.wire[:SEARCH_BYTES].lower():
                        items.append(self._row(queue, sequence, message))
        return {"items": items, "next": None, "looked_count": looked_count}

    async def message(self, destination: Destination, message_id: str, place: str) -> Row:
        """Return one whole message. Raises ApiError if it is not found among the first SEARCH_COUNT_MAX."""
        number = self.number_of(message_id)
        looked_count = 0
        for start in [place, ""] if place else [""]:
            async with aclosing(self._from(destination, start)) as walk:
                async for queue, run in walk:
                    for sequence, message in run:
                        if message.number == number:
                            return await self._whole(destination, queue, sequence, message)
                    looked_count += len(run)
                    if looked_count > SEARCH_COUNT_MAX or (start and place):
                        break
        if looked_count > SEARCH_COUNT_MAX:
            raise not_found(
                f"message {message_id[:100]!r} is not among the first {SEARCH_COUNT_MAX:,} of {destination.name}",
                "Give its `place`, as the list of messages has it.",
            )
        raise not_found(
            f"there is no message {message_id[:100]!r} in {destination.name} now",
            "It may have been consumed: /api/v1/trails knows where it went.",
        )

    def number_of(self, message_id: str) -> int:
        """Return the number in a message-id of this broker. Raises ApiError."""
        token, dash, digits = message_id.rpartition("-")
        if not dash or token != self._shards.token.decode() or not (digits.isascii() and digits.isdigit()):
            raise bad_request(
                f"{message_id[:100]!r} is no message-id of this broker",
                f"They are written {self._shards.token.decode()}-NUMBER.",
            )
        return int(digits[:19])

    async def _from(
        self, destination: Destination, start: str
    ) -> AsyncGenerator[tuple[MessageQueue, list[Found]], None]:
        """Yield all messages from this place on."""
        start_at, position = _parse_place(start)
        queues = sorted(destination.queues, key=_order_of)
        for queue in queues:
            if start_at is not None and _order_of(queue) < start_at:
                continue
            first = position if _order_of(queue) == start_at else 0
            async with aclosing(self._reader.walk(queue, first, queue.elements.next_sequence)) as walk:
                async for run in walk:
                    yield queue, run

    def _row(self, queue: MessageQueue, sequence: int, message: Message) -> Row:
        body, total_bytes, is_whole = self._body_in_memory(message, PREVIEW_LENGTH * 4)
        attempts = queue.attempts_among((sequence,)).get(sequence)
        now_seconds = self._clock()
        return {
            "message_id": f"{self._shards.token.decode()}-{message.number}",
            "place": _place_of(queue, sequence),
            "state": queue.state_of(sequence),
            "size_bytes": len(message.wire) + (total_bytes if message.large is not None else 0),
            "age_seconds": max(0.0, now_seconds - self._pulse.ages.came_at(message.number)),
            "redelivered": attempts is not None,
            "headers": _headers_of(message),
            "preview": preview(body, is_whole=is_whole),
        }

    @staticmethod
    def _body_in_memory(message: Message, bytes_max: int) -> tuple[bytes, int, bool]:
        """The beginning of the body, its length, and whether that is all of it; of a large one nothing is here."""
        if message.large is not None:
            return b"", message.large[1], False
        head: Any = message.head
        start, end = head.body_offset, len(message.wire) - 1  # the terminator is no part of it
        body = message.wire[start : min(end, start + bytes_max)]
        return body, end - start, len(body) == end - start

    async def _whole(self, destination: Destination, queue: MessageQueue, sequence: int, message: Message) -> Row:
        row = self._row(queue, sequence, message)
        del row["preview"]
        body, total_bytes, is_whole = self._body_in_memory(message, BODY_BYTES_MAX)
        if isinstance(message, LargeMessage):
            body = await self._read_large(message, min(BODY_BYTES_MAX, total_bytes))
            is_whole = len(body) == total_bytes
        shown: Row = {"bytes_total": total_bytes, "truncated": not is_whole}
        text = as_text(body, is_whole=is_whole)
        if text is not None:
            shown |= {"encoding": "text", "text": text}
        else:
            shown |= {"encoding": "base64", "data": body}
        return {**row, "destination": destination.name, "body": shown}

    async def _read_large(self, message: LargeMessage, count_bytes: int) -> bytes:
        bodies = self._shards.bodies_to_read
        assert bodies is not None, "where else should it be"
        parts: list[bytes] = []
        offset = 0
        while offset < count_bytes:
            done = trio.Event()
            results: list[bytes | Exception] = []

            def take(
                result: bytes | Exception, results: list[bytes | Exception] = results, done: trio.Event = done
            ) -> None:
                results.append(result)
                done.set()

            bodies.read(message.body, offset, count_bytes - offset, take)
            await done.wait()
            result = results[0]
            if isinstance(result, Exception):
                raise ApiError(503, "unreadable", f"the body can't be read now: {result}", "Look at the store page.")
            if not result:
                break
            parts.append(result)
            offset += len(result)
        return b"".join(parts)

    # ------------------------------------------------------------------ dead letters

    async def dead_letters(self, may_look: Callable[[str], bool]) -> Row:
        """The queues of dead letters, with reasons and origins of the first LETTERS_MAX of each."""
        items = []
        for name in sorted(self._dead_letter_queues()):
            destination = self._shards.registry.destinations.get(name)
            if destination is None or not may_look(name):
                continue
            reasons: dict[str, int] = {}
            origins: dict[str, int] = {}
            counted = 0
            async with aclosing(self._from(destination, "")) as walk:
                async for _queue, run in walk:
                    for _sequence, message in run:
                        headers = _headers_of(message)
                        for counts, header in (
                            (reasons, "dead-letter-reason"),
                            (origins, "dead-letter-destination"),
                        ):
                            value = headers.get(header, "")
                            counts[value] = counts.get(value, 0) + 1
                    counted += len(run)
                    if counted >= LETTERS_MAX:
                        break
            items.append(
                {
                    "name": name,
                    "depth_count": figure("depth_count", destination),
                    "depth_bytes": figure("depth_bytes", destination),
                    "counted_count": counted,
                    "reasons": [{"reason": reason, "count": count} for reason, count in _most_first(reasons)],
                    "origins": [{"origin": origin, "count": count} for origin, count in _most_first(origins)],
                }
            )
        return {"items": items}


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _order_of(queue: MessageQueue) -> tuple[int, int]:
    """Return the sort key of the queues of a destination: the highest priority first, then by part."""
    return -queue.priority, queue.part


def _place_of(queue: MessageQueue, sequence: int) -> str:
    part = f"-{queue.part}" if queue.part else ""
    return f"{queue.priority}{part}.{sequence}"


_PLACE: Final = re.compile(r"([0-9])(?:-([0-9]{1,9}))?\.([0-9]{1,19})", re.ASCII)


def _parse_place(text: str) -> tuple[tuple[int, int] | None, int]:
    """Return the queue by its order (None: from the beginning) and the sequence. Raises ApiError."""
    if text in ("", "0"):
        return None, 0
    found = _PLACE.fullmatch(text)
    if found is None:
        raise bad_request(f"{text[:40]!r} is no place", "Take the `next` or the `place` of an answer.")
    priority, part, sequence = found.groups()
    return (-int(priority), int(part or 0)), int(sequence)


def _headers_of(message: Message) -> dict[str, str]:
    head: Any = message.head
    headers: dict[str, str] = head.headers
    return headers
