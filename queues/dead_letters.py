"""Dead letters: messages that a queue gives up, with the reason, and their way to the dead-letter queue.

A message is given up when it failed too often, when it has expired, or when it has to make room, according to the
policy of its queue. Then it is *dead-lettering*: still in its queue and charged there, but available to no consumer.
From there it moves to the dead-letter queue, under a header block that records its history. If that queue has no room,
the message stays in its queue until there is some: the queue that gives it up is a source of the dead-letter queue like
any other, so nothing is lost on the way and the flow map shows the wait. A persistent message leaves its queue and is
added to the other in one write; a queue of another shard has it first, synced (`when_taken`).

A queue of another hub has it first, too, and has said so (`Courier`): MOVE_COUNT letters of one queue are on their way
at most. A letter whose outcome is not known is taken there again, with the same message-id and `possible-duplicate`.

A queue that some policy names as a dead-letter queue gives nothing up: there are no loops.

A subscriber of a topic gives up what it has refused too often; then the dead letter is a copy (refusals.py).

Bound: the queue bounds its dead-lettering messages; 100 bytes each beside that.

Source: DESIGN section 6 (redelivery limit, `dead_letter`); issue 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import islice
from typing import Final, Protocol

import attrs

from ..flow import Account, Flow, FlowClosedError, SourceController, WindowLimiter
from .cursored import BLOCK_BITS
from .durables import client_id_in_host
from .environment import QueueEnvironment
from .full_actions import QueueFullError
from .message import Envelope, Message
from .names import host_prefix_of, parse, without_host
from .queue import MessageQueue

FAILED: Final = "redeliveries"
"""Reason: the message was tried as often as the policy allows."""
REJECTED: Final = "rejected"
"""Reason: the consumer rejected the message."""
EXPIRED: Final = "expired"
CROWDED_OUT: Final = "full"

MOVE_COUNT: Final = 32
"""Messages moved in one go: each gets a header block of its own, which takes some 20 microseconds."""

RETRY_SECONDS: Final = 1.0
"""Seconds until the next attempt after the dead-letter queue could not be made, or refused a message."""

Rewrite = Callable[[Message, Mapping[str, str | None]], tuple[Envelope, bytes]]
"""Gives the head and the wire of a message with some headers set (a string) or removed (None). The protocol's part."""


class Unreachable(Exception):
    """The dead-letter queue can't take anything now, and won't tell when it can. The message says why."""


class LetterComesError(Exception):
    """A message is on its way from the disk: who gives it up calls `move` when it is there."""


RefusedBy = tuple[str, str | None]
"""Name of the subscription of a topic that has refused it, and the client id of a durable one."""


LetterOf = Callable[[int], "tuple[Message, Mapping[str, str | None]] | None"]
"""The message of a sequence, and headers that it has as a dead letter only. None: it can't be read now, and is tried
again in a second. Raises LetterComesError."""


@attrs.frozen
class FarQueue:
    """Queue of another hub that has taken messages."""

    name: str


Carried = Callable[[str, bool], None]
"""Gets the outcome of one message on its way to another hub: the reason why it is not there (empty: it is there,
confirmed), and whether it may be there all the same.
"""


class Courier(Protocol):
    """Takes messages to queues of other hubs."""

    def has(self, name: str) -> bool:
        """Return whether the queue of this name is not at home here."""

    def carry(
        self, name: str, head: Envelope, wire: bytes, number: int, done: Carried, *, is_letter: bool = True
    ) -> None:
        """Take a message to a queue. `done` is called once, now or later. `is_letter`: it is a dead letter; else an
        operator moves it, also to a topic.
        """


class GivesUp(Protocol):
    """Owner of dead letters: the queue itself, or a subscriber of a topic."""

    def still_has(self, sequence: int) -> bool:
        """Return whether the element is in the queue and still to be moved."""

    def attempts_of(self, sequence: int) -> int:
        """Return the number of failed attempts of the element."""

    def dead_lettered(self, sequences: SequenceOf[int], to: MessageQueue | FarQueue) -> None:
        """Note that the elements were moved to the queue `to`."""


class DeadLetterQueues(Protocol):
    """Part of the registry that a router uses."""

    def durable_names(self, durable_id: int) -> RefusedBy:
        """Name and client id of this durable subscription."""

    def queue_for_dead_letters(self, name: str, head: Envelope) -> MessageQueue:
        """The partition for messages with this head, made if need be. Raises Unreachable."""


class DeadLetterRouter:
    """Takes messages to dead-letter queues. One per broker."""

    __slots__ = ("_names", "_now_ms", "_queues", "_rewrite", "courier", "durable_names")

    def __init__(
        self,
        queues: DeadLetterQueues,
        names: Iterable[str],
        *,
        rewrite: Rewrite,
        now_ms: Callable[[], int],
        courier: Courier | None = None,
    ) -> None:
        """`names`: all dead-letter queues that any policy names; `courier`: way to other hubs; None: there are none."""
        self.durable_names = queues.durable_names
        self._queues = queues
        self.name_queues(names)
        self._rewrite = rewrite
        self._now_ms = now_ms
        self.courier = courier

    def is_far(self, to: str) -> bool:
        """Return whether this queue is not at home here."""
        return self.courier is not None and self.courier.has(parse(to).canonical)

    @staticmethod
    def _name_for(to: str, origin: str) -> str:
        """Return the name of a dead-letter queue, which is in the virtual host of `origin` if it names none."""
        name = parse(to).canonical
        return name if host_prefix_of(name) else host_prefix_of(origin) + name

    def name_queues(self, names: Iterable[str]) -> None:
        """Set the dead-letter queues: `names` are all that any policy may name."""
        self._names = frozenset(parse(name).canonical for name in names)

    def serves(self, name: str) -> bool:
        """Return whether the queue may give messages up: it is not a dead-letter queue itself."""
        return name not in self._names and without_host(name) not in self._names

    def move(
        self,
        message: Message,
        to: str,
        *,
        origin: str,
        reason: str,
        attempts_count: int,
        source: SourceController,
        shard: int | None = 0,
        refused_by: RefusedBy | None = None,
        facts: Mapping[str, str | None] | None = None,
    ) -> MessageQueue | None:
        """Add a message to the dead-letter queue `to`. Returns the partition that took it; None: it has no room, and
        `source` is blocked. Raises Unreachable.

        `shard`: where the message is now. `refused_by` a subscription of a topic or a reader of a log: the dead letter
        is a copy, for others may still have the message. `facts`: more headers of the dead letter.
        """
        name = self._name_for(to, origin)
        queue = self._queues.queue_for_dead_letters(name, message.head)
        if message.large is not None and queue.environment.shard != shard:
            raise Unreachable(
                f"{name} is in another shard than {origin}, where a large body can't go: give both names the same part "
                "in braces, as in /queue/{orders}.new and /queue/{orders}.dead"
            )
        history = self._history(name, origin, reason, attempts_count, refused_by)
        head, wire = self._rewrite(message, {**history, **(facts or {})})
        letter = message.rewritten(head, wire)
        if refused_by is not None:
            letter.number = queue.environment.take_numbers(1)
        try:
            taken = queue.offer([letter], len(wire), source)
        except (QueueFullError, FlowClosedError) as error:
            raise Unreachable(str(error)) from None
        return queue if taken else None

    def carry(
        self,
        message: Message,
        to: str,
        done: Carried,
        *,
        origin: str,
        reason: str,
        attempts_count: int,
        number: int,
        refused_by: RefusedBy | None = None,
        facts: Mapping[str, str | None] | None = None,
    ) -> None:
        """Take a message to the dead-letter queue `to` of another hub. `number`: the letter's. Raises Unreachable."""
        name = self._name_for(to, origin)
        if message.large is not None:
            raise Unreachable(
                f"{name} is at another hub than {origin}, where a large body can't go: give both names the same part "
                "in braces, as in /queue/{orders}.new and /queue/{orders}.dead"
            )
        assert self.courier is not None, "asked for before"
        history = self._history(name, origin, reason, attempts_count, refused_by)
        head, wire = self._rewrite(message, {**history, **(facts or {})})
        self.courier.carry(name, head, wire, number, done)

    def _history(
        self, name: str, origin: str, reason: str, attempts_count: int, refused_by: RefusedBy | None
    ) -> dict[str, str | None]:
        """Return the headers that a dead letter gets, and (None) those that it loses."""
        subscription, client_id = (None, None) if refused_by is None else refused_by
        if client_id is not None and host_prefix_of(origin):
            client_id = client_id_in_host(client_id)
        return {
            "destination": without_host(name),
            "dead-letter-reason": reason,
            "dead-letter-destination": without_host(origin),
            "dead-letter-count": str(attempts_count),
            "dead-letter-time": str(self._now_ms()),
            "dead-letter-subscription": subscription,
            "dead-letter-client-id": client_id,
            "group": None,
            "JMSXGroupID": None,
            "expires": None,
            "expiration": None,
            "delay": None,
            "AMQ_SCHEDULED_DELAY": None,
            "x-delay": None,
        }


def when_taken(
    to: MessageQueue,
    count: int,
    done: Callable[[], None],
    *,
    environment: QueueEnvironment,
    is_closed: Callable[[], bool],
) -> None:
    """Call `done`, which removes elements from a queue with this environment, when the `count` elements that the queue
    `to` was just given for them may stay the only ones.

    Within a shard that is at once: one batch has both. In another shard they are written first, and synced: after a
    crash in between both queues have them, with the same message-ids. `is_closed`: the first queue has ended meanwhile.
    """
    if to.environment.shard == environment.shard or not to.keeps:
        done()
        return

    def saved(_durability: str) -> None:
        if not is_closed():
            done()

    to.when_saved(to.elements.next_sequence - count, saved)


class DeadLettering:
    """Elements that one queue gives up, until they are moved."""

    __slots__ = (
        "_doubtful",
        "_environment",
        "_gate",
        "_giver",
        "_held",
        "_letter_of",
        "_move_count",
        "_moving",
        "_numbers",
        "_on_the_way",
        "_queue",
        "_reasons",
        "_refused_by",
        "_router",
        "_source",
        "_to",
        "_waits",
        "trouble",
    )

    def __init__(
        self,
        queue: MessageQueue,
        giver: GivesUp,
        router: DeadLetterRouter,
        to: str,
        environment: QueueEnvironment,
        *,
        refused_by: RefusedBy | None = None,
        letter_of: LetterOf | None = None,
        move_count: int = MOVE_COUNT,
    ) -> None:
        """`letter_of`: where messages come from that are not in the queue's own elements; `move_count`: how many of
        them are moved in one go.
        """
        self._move_count = move_count
        self._queue = queue
        self._letter_of = letter_of
        self._giver = giver
        self._refused_by = refused_by
        self._router = router
        self._to = to
        self._environment = environment
        self._reasons: dict[int, str] = {}
        """Reason by sequence, in the order in which the elements are moved."""
        self._on_the_way: set[int] = set()
        """Elements of which letters are on their way to another hub; still in `_reasons`."""
        self._held: set[int] = set()
        """Elements that an operator moves to another hub: as little available as those given up."""
        self._doubtful: set[int] = set()
        """Elements of which a letter may have come to another hub without our knowing."""
        self._numbers: dict[int, int] = {}
        """Numbers of copies that were taken on their way, to be used again."""
        self._moving = False
        self._waits = False
        """Whether a continuation is scheduled."""
        self.trouble = ""
        """Reason why nothing can be moved, other than a lack of room; empty: there is none."""
        clock = environment.clock
        self._source = SourceController(
            queue,
            Flow(f"dead letters of {queue.name}"),
            on_resume=lambda _sink: self.move(),
            priority=queue.priority,
            clock=clock,
        )
        self._gate = Account(
            queue,
            Flow(f"{queue.name} until dead letters have gone"),
            WindowLimiter(1, None, clock=clock, label="room that dead letters take up"),
            schedule=environment.resume,
            clock=clock,
            counts_memory=False,
        )

    def __len__(self) -> int:
        return len(self._reasons)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._reasons or sequence in self._held

    def hold(self, sequence: int) -> None:
        """Keep an element from consumers, until `let_go` or its end."""
        self._held.add(sequence)

    def let_go(self, sequence: int) -> bool:
        """Let go of an element that was held. False: it has left."""
        if sequence not in self._held:
            return False
        self._held.remove(sequence)
        return True

    def send_to(self, to: str) -> None:
        """Change the dead-letter queue."""
        self._to = to

    def add(self, sequences: SequenceOf[int], reason: str) -> None:
        """Add elements that are given up; none of them is available any more. Call `move` then."""
        if not self._reasons and sequences:
            self._gate.charge(1, 0, None)
        self._reasons.update(dict.fromkeys(sequences, reason))

    def discard(self, sequences: Iterable[int]) -> None:
        """Forget elements that have left in another way."""
        self._held.difference_update(sequences)
        for sequence in self._reasons.keys() & sequences:
            del self._reasons[sequence]
            self._doubtful.discard(sequence)
            self._numbers.pop(sequence, None)
        self._release_waiting()

    def hold_back(self, source: SourceController) -> bool:
        """Block this source until nothing is dead-lettering. False: nothing is."""
        if not self._reasons:
            return False
        self._gate.wait_in_line(source)
        return True

    def paged_in(self) -> None:
        """Continue with the dead-lettering messages of a block that is in memory."""
        if self._reasons:
            self.move()

    def move(self) -> None:
        """Move the messages that can be moved now; the rest follows without further calls."""
        if self._moving or self._waits or self._source.blocked or self._queue.closed or self._on_the_way:
            return
        self._moving = True
        is_far = self._router.is_far(self._to)
        moved: dict[MessageQueue, list[int]] = {}
        self.trouble = ""
        try:
            for sequence, reason in list(islice(self._reasons.items(), self._move_count)):
                if not self._giver.still_has(sequence):  # the element could not be read back
                    del self._reasons[sequence]
                    continue
                letter = self._read(sequence) if self._letter_of is None else self._letter_of(sequence)
                if letter is None:
                    if self._letter_of is not None:
                        self._go_on_after(RETRY_SECONDS)
                    break
                message, facts = letter
                if is_far:
                    self._carry(sequence, reason, message, facts)
                    continue
                took = self._router.move(
                    message,
                    self._to,
                    origin=self._queue.destination_name,
                    reason=reason,
                    attempts_count=self._giver.attempts_of(sequence),
                    source=self._source,
                    shard=self._environment.shard,
                    refused_by=self._refused_by,
                    facts=facts,
                )
                if took is None:
                    break
                del self._reasons[sequence]
                moved.setdefault(took, []).append(sequence)
            else:
                if self._reasons and not is_far:
                    self._go_on_after(0.0)
        except LetterComesError:
            pass
        except Unreachable as error:
            self.trouble = str(error)
            self._go_on_after(RETRY_SECONDS)
        finally:
            self._moving = False
        for took, sequences in moved.items():
            done = partial(self._giver.dead_lettered, sequences, took)
            when_taken(took, len(sequences), done, environment=self._environment, is_closed=lambda: self._queue.closed)
        self._release_waiting()
        if is_far:
            self._go_on_carrying()

    def _carry(self, sequence: int, reason: str, message: Message, facts: Mapping[str, str | None] | None) -> None:
        """Send a letter to another hub. Raises Unreachable."""
        number = message.number
        if self._refused_by is not None:  # a copy, for others may still have the message
            number = self._numbers.setdefault(sequence, 0) or self._environment.take_numbers(1)
            self._numbers[sequence] = number
        if sequence in self._doubtful:
            facts = {**(facts or {}), "possible-duplicate": "true"}
        self._on_the_way.add(sequence)
        try:
            self._router.carry(
                message,
                self._to,
                partial(self._carried, sequence),
                origin=self._queue.destination_name,
                reason=reason,
                attempts_count=self._giver.attempts_of(sequence),
                number=number,
                refused_by=self._refused_by,
                facts=facts,
            )
        except Unreachable:
            self._on_the_way.discard(sequence)
            raise

    def _carried(self, sequence: int, why_not: str, may_be_there: bool) -> None:
        """Take the outcome of a letter that was sent to another hub."""
        self._on_the_way.discard(sequence)
        if self._queue.closed:
            return
        if why_not:
            self.trouble = why_not
            if may_be_there:
                self._doubtful.add(sequence)
        else:
            self._doubtful.discard(sequence)
            self._numbers.pop(sequence, None)
            if self._reasons.pop(sequence, None) is not None and self._giver.still_has(sequence):
                self._giver.dead_lettered([sequence], FarQueue(parse(self._to).canonical))
            self._release_waiting()
        if not self._moving:
            self._go_on_carrying()

    def _go_on_carrying(self) -> None:
        """Send the next letters, when all that were sent have come, or were refused."""
        if self._reasons and not self._on_the_way and not self._waits and not self._queue.closed:
            self._go_on_after(RETRY_SECONDS if self.trouble else 0.0)

    def _release_waiting(self) -> None:
        """Release waiting senders when nothing is dead-lettering."""
        if not self._reasons and self._gate.limiter.used_count and not self._gate.closed:
            self._gate.release(1, 0)

    def close(self) -> None:
        """Close the owner's dead-lettering: elements that were not moved yet are forgotten."""
        self._reasons.clear()
        self._held.clear()
        self._doubtful.clear()
        self._numbers.clear()
        self._source.close()
        self._release_waiting()
        self._gate.close()

    def _read(self, sequence: int) -> tuple[Message, None] | None:
        """None: it is not in memory; `paged_in` is called when it is."""
        elements = self._queue.elements
        message = elements.get(sequence)
        if message is None and self._queue.pager is not None:
            self._queue.pager.want(sequence >> BLOCK_BITS)
            message = elements.get(sequence)
        return None if message is None else (message, None)

    def _go_on_after(self, delay_seconds: float) -> None:
        self._waits = True
        self._environment.scheduling.call_later(delay_seconds, self._go_on)

    def _go_on(self) -> None:
        self._waits = False
        self.move()
