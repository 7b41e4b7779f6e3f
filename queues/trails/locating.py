"""Search for a message in the queues, with or without a trail.

The search is by number: in memory element by element (a block of 1,024 takes some 40 microseconds, a block with dense
numbers a few steps); a paged-out block remembers its lowest and highest number. For blocks of an earlier run these are
unknown before the first read: such blocks are read by bisection, as numbers mostly ascend, at most READS_MAX.

All work goes in bounded steps: generators yield None between steps, and a `Wanted` block that they need to read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final

import attrs

from ..blocks import Block
from ..cursored import BLOCK_BITS, CursoredQueue
from ..message import Message
from ..queue import MessageQueue
from ..topic import Topic

READS_MAX: Final = 32
"""Maximum blocks read from disk to find one message: each takes some milliseconds."""

BLOCKS_PER_STEP: Final = 8

READERS_PER_STEP: Final = 256
"""Subscribers of a topic checked per step for one element."""
COUNTED_PER_STEP: Final = 512
"""Blocks per step whose elements are counted; the count of a block is usually stored."""

WAITING_NAMES_MAX: Final = 20
"""Maximum subscriptions of a topic that are named."""


@attrs.frozen
class Wanted:
    """Request to read a block from the store: send its elements by sequence, or None to skip it."""

    queue: MessageQueue
    index: int


Step = Wanted | None
Elements = Mapping[int, Message] | None
Steps = Generator[Step, Elements, "tuple[MessageQueue, int] | None"]
HolderOf = Callable[[MessageQueue, int], Generator[Step, Elements, "str | None"]]


@attrs.frozen
class ElementPlace:
    """Present place of an element."""

    queue_name: str
    sequence: int
    on_disk: bool
    """Whether the element is not in memory."""
    ahead_count: int
    """Elements before it in the queue, delivered or not."""
    holder: str | None
    """Consumer that holds the element unsettled; None: none is known."""
    due_at_ms: int
    """Time before which the element must not be delivered; 0: none."""
    needed_by: tuple[str, ...]
    """Readers of a topic that have not settled the element, at most WAITING_NAMES_MAX."""
    needed_by_count: int


def locate(number: int, queues: Iterable[MessageQueue]) -> Steps:
    """Find the message with this number in the queues. Returns queue and sequence; None if it is in none, or on disk
    where not all blocks could be read.
    """
    unread: list[MessageQueue] = []
    for queue in queues:
        elements, steps = queue.elements, 0
        for index in elements.block_indices():
            block = elements.block(index)
            if block is None or queue.closed:
                continue
            if block.outside is None:
                place = _place_in(block, number)
                if place is not None:
                    return queue, block.base + place
                steps += 1
            elif block.outside.numbers is None:
                if not unread or unread[-1] is not queue:
                    unread.append(queue)
            elif block.outside.numbers[0] <= number <= block.outside.numbers[1]:
                found = _sequence_among(number, (yield Wanted(queue, index)))
                if found is not None and elements.is_alive(found):
                    return queue, found
            if steps >= BLOCKS_PER_STEP:
                steps = 0
                yield None
        yield None
    for queue in unread:
        sequence = yield from _read(number, queue)
        if sequence is not None and queue.elements.is_alive(sequence):
            return queue, sequence
    return None


def _place_in(block: Block, number: int) -> int | None:
    """Return the message's place in a block in memory."""
    elements = block.elements
    first, last = (elements[0], elements[-1]) if elements else (None, None)
    if first is not None and last is not None:  # in most blocks numbers are dense
        guess = number - first.number
        if 0 <= guess < len(elements) and (message := elements[guess]) is not None and message.number == number:
            return guess
        if last.number - first.number == len(elements) - 1:
            return None
    return next(
        (place for place, message in enumerate(elements) if message is not None and message.number == number), None
    )


def _sequence_among(number: int, by_sequence: Elements) -> int | None:
    return next((sequence for sequence, message in (by_sequence or {}).items() if message.number == number), None)


def _read(number: int, queue: MessageQueue) -> Generator[Step, Elements, int | None]:
    """Bisect the blocks of an earlier run. A block that was read keeps its bounds for the next search."""
    elements = queue.elements
    indices = [
        index for index, block in elements.blocks() if block.outside is not None and block.outside.numbers is None
    ]
    low, high = 0, len(indices)
    for _ in range(READS_MAX):
        if low >= high:
            return None
        middle = (low + high) // 2
        index = indices[middle]
        by_sequence = yield Wanted(queue, index)
        if not by_sequence:
            del indices[middle]
            high -= 1
            continue
        numbers = [message.number for message in by_sequence.values()]
        bounds = min(numbers), max(numbers)
        block = elements.block(index)
        if block is not None and block.outside is not None:
            block.outside.numbers = bounds
        sequence = _sequence_among(number, by_sequence)
        if sequence is not None:
            return sequence
        if number < bounds[0]:
            high = middle
        else:
            low = middle + 1
    return None


def place_of(
    queue: MessageQueue, sequence: int, holder: str | None, holder_of: HolderOf
) -> Generator[Step, Elements, ElementPlace | None]:
    """Return the place of an element; None: it has left. `holder`: the holder by the trail; `holder_of`: asked if there
    is none.
    """
    elements = queue.elements
    if queue.closed or not elements.is_alive(sequence):
        return None
    needed_by: list[str] = []
    needed_by_count = 0
    if isinstance(queue, Topic):
        holder = None
        needed_by, needed_by_count = yield from _needed_by(queue, sequence)
    elif holder is None and sequence < queue.handed_to:
        holder = yield from holder_of(queue, sequence)
    ahead_count = yield from _ahead_count(elements, sequence)
    if queue.closed or not elements.is_alive(sequence):
        return None
    block = elements.block(sequence >> BLOCK_BITS)
    message = elements.get(sequence)
    return ElementPlace(
        queue.name,
        sequence,
        on_disk=block is not None and block.outside is not None,
        ahead_count=ahead_count,
        holder=holder,
        due_at_ms=0 if message is None else message.due_at_ms,
        needed_by=tuple(needed_by),
        needed_by_count=needed_by_count,
    )


def _needed_by(queue: Topic, sequence: int) -> Generator[Step, Elements, tuple[list[str], int]]:
    """Return the first names and the number of the topic's readers that have not settled this element."""
    names: list[str] = []
    count = 0
    for place, subscription in enumerate(list(queue.subscriptions.values()), 1):
        if subscription.cursor is not None and subscription.cursor.needs(sequence):
            count += 1
            if count <= WAITING_NAMES_MAX:
                names.append(subscription.consumer.label)
        if place % READERS_PER_STEP == 0:
            yield None
    for place, reader in enumerate(list(queue.readers.by_id.values()), 1):
        if not reader.subscriptions and reader.cursor.needs(sequence):
            count += 1
            if count <= WAITING_NAMES_MAX:
                names.append(f"durable subscription {reader.durable_id}, without a consumer")
        if place % READERS_PER_STEP == 0:
            yield None
    return names, count


def _ahead_count(elements: CursoredQueue, sequence: int) -> Generator[Step, Elements, int]:
    """Return the number of elements before this one."""
    count = first = 0
    for index in elements.block_indices()[COUNTED_PER_STEP::COUNTED_PER_STEP]:
        end = index << BLOCK_BITS
        if end >= sequence:
            break
        count += elements.count_live(first, end)
        first = end
        yield None
    return count + elements.count_live(first, sequence) if first < sequence else count
