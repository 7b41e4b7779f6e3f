"""Claims: messages of a queue, taken for a group in numbered portions that can be read again until they are
acknowledged. Made for readers that replay from a checkpoint, such as Spark.

`claim(n)` moves messages of the queue, up to a limit, into the group's *claim log*, saves which records are claim n,
and only then settles the messages in the queue. A repeated request gets the same answer. The records are read like
those of any log: by range, repeatedly, from any connection. `ack(n)` acknowledges all claims up to n.

A claim is kept while requests show that the group is alive (`touch`), plus a grace period. After that the claim is
*released*: it reads as empty, and its records are part of a later claim. A claim never changes otherwise: a replay
finds the same records, or none.

One *planner* at a time claims and acknowledges for a group. A planner that opens the group takes over; an earlier
planner that wakes up late is refused, so it can neither acknowledge records it never read nor keep an unread group
alive. Claims survive a take-over: the new planner may be a restart of the old one.

`state` holds the decisions, `_kept` the part of them on disk. No decision is reported before it is on disk: a claim
reported as released that reappeared after a crash would be acknowledged unread. One save runs at a time, always of the
newest state, so no older state can overwrite a newer one.

Durability: a claim is on disk before it is reported and before the queue forgets its messages. A crash in between
delivers those messages twice (at least once, as for any consumer whose acknowledgement was lost). Records that a crash
leaves behind the last claim are never part of a claim: the queue still has their messages.

Bound: CLAIMS_MAX unacknowledged claims; one claim at a time is made, of at most `count_max` messages.

Source: issue 5 item 3; the research on Spark, section 7b.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import repeat
from typing import Any, Final, Protocol

import attrs

from ...flow import Account, Flow, FlowResource, WindowLimiter
from ...flow.kinds import ResourceKind
from ..environment import QueueEnvironment
from ..message import Message
from ..slices import Slice
from ..subscription import Subscription
from .batches import BatchError
from .codes import INTERNAL_ERROR, TOPIC_NOT_EXIST
from .log import GONE, Log
from .table import LogError

SETTLED_PER_STEP: Final = 256
"""Messages of the queue settled per step."""
CLAIMS_MAX: Final = 1000
ASKERS_MAX: Final = 100
"""Maximum number of requests that wait for the claim being made."""
LINGER_SECONDS: Final = 0.02
"""Time without a new message from the queue after which a claim is complete."""
DISK_SECONDS: Final = 2.0
"""The same limit while the next messages are being read from disk."""
WAIT_SECONDS_MAX: Final = 20.0
CLAIM_COUNT_MAX: Final = 1_000_000
CLAIM_BYTES_MAX: Final = 256 * 1024 * 1024
GRACE_SECONDS: Final = 600.0
"""Default lifetime of claims after the last sign of life of their group."""
INVALID_CLAIM: Final = "INVALID_CLAIM"
GROUP_TAKEN: Final = "GROUP_TAKEN"


@attrs.frozen
class Claim:
    """Claim `number`: records `start` to before `end` of the claim log."""

    number: int
    start: int
    end: int
    released: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the claim as reported to clients; a released claim is empty."""
        end = self.start if self.released else self.end
        return {"claim": self.number, "from": self.start, "to": end, "released": self.released}


@attrs.frozen
class ClaimState:
    """State of a group as kept on disk."""

    queue: str
    group: str
    log_id: str = ""
    """Id of the claim log that holds the records."""
    next_number: int = 1
    taken_to: int = 0
    """Index below which every record is or was in a claim, or never will be."""
    claims: tuple[Claim, ...] = ()
    again: tuple[tuple[int, int], ...] = ()
    """Released ranges, to be claimed again."""
    grace_seconds: float = GRACE_SECONDS
    planner: str = ""
    """Planner that opened the group last."""

    @property
    def floor(self) -> int:
        """Index below which no record will be read."""
        starts = [claim.start for claim in self.claims if not claim.released]
        return min([self.taken_to, *starts, *[start for start, _end in self.again]])

    def without_records(self, log_id: str) -> ClaimState:
        """Return the state over a new log: unacknowledged claims are empty, and no record is claimed again."""
        claims = tuple(Claim(claim.number, 0, 0, released=True) for claim in self.claims)
        return attrs.evolve(self, log_id=log_id, taken_to=0, claims=claims, again=())


class ClaimKeeper(Protocol):
    """Port to the storage of group states. `done` is called on the loop, with None when the state is on disk, or with
    the error.
    """

    def save(self, log: str, state: ClaimState, done: Callable[[Exception | None], None]) -> None: ...


class ClaimAttachment(Protocol):
    """Attachment to a queue."""

    @property
    def awaits_disk(self) -> bool:
        """Whether the queue has more messages that are being read from disk."""

    def close(self) -> None: ...


Reply = Callable[[Mapping[str, Any] | LogError], None]


@attrs.frozen
class _Taken:
    """An unsettled delivery of the queue. `number`: its claim."""

    number: int
    subscription: Subscription
    sequences: SequenceOf[int]
    wire_bytes: int


class ClaimGroup(FlowResource):
    """A group of one queue. Consumes from the queue only while it makes a claim."""

    rank = 0

    upkeep_bytes = 2 * 1024

    def __init__(
        self,
        log: Log,
        state: ClaimState,
        keeper: ClaimKeeper,
        environment: QueueEnvironment,
        attach: Callable[[ClaimGroup], ClaimAttachment],
        truncate: Callable[[Log, int], None],
    ) -> None:
        """Take `state` as kept or new. `attach` makes the group a consumer of its queue and raises LogError; `truncate`
        removes records of the claim log below an index.
        """
        super().__init__(f"claims of {state.queue} by {state.group}", ResourceKind.CLAIM_GROUP, environment.manager)
        self.log = log
        log.is_private = True
        self.state = state
        self._kept = state
        if state.log_id != log.log_id or state.taken_to > log.records.next_index:
            self.state = state.without_records(log.log_id)  # the log was deleted, or its folder
        self.claimed_count = 0
        self._keeper = keeper
        self._environment = environment
        self._attach = attach
        self._truncate = truncate
        self._saving = False
        self._on_kept: list[Callable[[Exception | None], None]] = []
        self._told: list[Callable[[Exception | None], None]] = []
        """Callbacks for the end of the save under way."""
        self._attachment: ClaimAttachment | None = None
        self._making: int | None = None
        self._replies: list[Reply] = []
        self._taken: deque[_Taken] = deque()
        """Deliveries in the order of their claims."""
        self._delivered_seconds = 0.0
        """Time of the last delivery of the queue, or of the start of the claim."""
        self._range: tuple[int, int] | None = None
        """Stored part of the claim being made."""
        self._storing_count = 0
        """Deliveries on their way to the disk."""
        self._count_left = 0
        self._bytes_left = 0
        self._refusal = ""
        self._is_last_turn = False
        self._timer: Any = None
        self._touched_seconds = environment.clock()
        self._window = Account(
            self,
            Flow(f"claim of {state.group}"),
            WindowLimiter(1, None, clock=environment.clock),
            clock=environment.clock,
            counts_memory=False,
        )
        self._context = environment.scheduling.register(self._last_turn, self.name)
        self.open()
        self._grace_timer = environment.scheduling.call_later(state.grace_seconds / 4, self._watch)

    # ------------------------------------------------------------------ requests

    def describe(self) -> dict[str, Any]:
        """Return the group as plain data."""
        state = self._kept
        first = state.claims[0].number if state.claims else state.next_number
        return {
            "queue": state.queue,
            "group": state.group,
            "log": self.log.name,
            "log_id": self.log.log_id,
            "next": state.next_number,
            "acked": first - 1,
            "claims": [claim.facts() for claim in state.claims],
            "again": sum([end - start for start, end in state.again]),
            "grace_seconds": state.grace_seconds,
            "planner": state.planner,
            "silent_seconds": self._environment.clock() - self._touched_seconds,
        }

    def claim(
        self, number: int, count_max: int, bytes_max: int, reply: Reply, *, wait_seconds: float = LINGER_SECONDS
    ) -> None:
        """Reply with claim `number`: the existing one, or a new one if it is the next. Waits up to `wait_seconds` for a
        first message; an empty claim is not made: `{"claim": null}`. Raises LogError.
        """
        self.touch()
        state = self.state
        if number == self._making:
            if len(self._replies) >= ASKERS_MAX:
                raise LogError(INVALID_CLAIM, f"{self.name}: {ASKERS_MAX} wait for claim {number} already")
            self._replies.append(reply)
            return
        if number < state.next_number:
            self._tell_when_kept(reply, lambda: self._facts_of(number))
            return
        if number > state.next_number:
            raise LogError(INVALID_CLAIM, f"{self.name}: claim {number} can't follow {state.next_number - 1}")
        if len(state.claims) >= CLAIMS_MAX:
            raise LogError(INVALID_CLAIM, f"{self.name}: {len(state.claims)} claims wait to be acknowledged")
        if self.log.closed:
            raise LogError(TOPIC_NOT_EXIST, f"{self.log.name} was deleted: ask again")
        if state.again:
            start, end = state.again[0]
            middle = min(end, start + min(count_max, CLAIM_COUNT_MAX))
            left = ((middle, end), *state.again[1:]) if middle < end else state.again[1:]
            self._making, self._replies = number, [reply]
            self._decide(Claim(number, start, middle), left)
            return
        self._count_left = min(count_max, CLAIM_COUNT_MAX)
        self._bytes_left = min(bytes_max, CLAIM_BYTES_MAX)
        self._range = None
        self._refusal = ""
        self._is_last_turn = False
        self._delivered_seconds = self._environment.clock()
        self._making, self._replies = number, [reply]
        try:
            self._attachment = self._attach(self)
        except LogError:
            self._making, self._replies = None, []
            raise
        wait_seconds = min(max(wait_seconds, LINGER_SECONDS), WAIT_SECONDS_MAX)
        self._timer = self._environment.scheduling.call_later(wait_seconds, self._lingered)

    def open_for(self, planner: str, reply: Reply) -> None:
        """Make `planner` the planner of the group. Earlier planners, which may only have slept, are refused from now
        on.
        """
        self.touch()
        if planner != self.state.planner:
            self.state = attrs.evolve(self.state, planner=planner)
        self._tell_when_kept(reply, dict)

    def check_planner(self, planner: str) -> None:
        """Raise LogError if another planner has opened the group. Opens it for `planner` if none has."""
        if planner == self.state.planner:
            return
        if self.state.planner:
            raise LogError(
                GROUP_TAKEN,
                f"another query has taken over group {self.state.group} of {self.state.queue}: let only one run at a "
                "time, or give each a groupId of its own",
            )
        self.state = attrs.evolve(self.state, planner=planner)

    def ack(self, number: int, reply: Reply) -> None:
        """Acknowledge all claims up to `number`. A number that was never assigned is accepted, too: the reader's
        checkpoint then is all that is left of an earlier store, and the next claim follows it. Claims made since cannot
        be meant by such a number: their records are claimed again. Raises LogError.
        """
        self.touch()
        state = self.state
        if self._making is not None and number >= self._making:
            raise LogError(INVALID_CLAIM, f"{self.name}: claim {number} is being made, and not handed out yet")
        if number >= state.next_number:
            unread = [(claim.start, claim.end) for claim in state.claims if not claim.released]
            again = _joined([*state.again, *unread])
            self.state = attrs.evolve(state, claims=(), again=again, next_number=number + 1)
        elif state.claims and state.claims[0].number <= number:
            left = tuple(claim for claim in state.claims if claim.number > number)
            self.state = attrs.evolve(state, claims=left)
        self._tell_when_kept(reply, lambda: {"acked": number})

    def touch(self) -> None:
        """Record a sign of life of the group."""
        self._touched_seconds = self._environment.clock()

    def set_grace(self, grace_seconds: float) -> None:
        """Set the grace period from now on. Saved with the next change."""
        if grace_seconds != self.state.grace_seconds:
            self.state = attrs.evolve(self.state, grace_seconds=grace_seconds)
            self._grace_timer.cancel()
            self._grace_timer = self._environment.scheduling.call_later(grace_seconds / 4, self._watch)

    def release(self, reply: Reply | None = None) -> None:
        """Release all unacknowledged claims except the one being made: they are empty from now on, and their records
        are claimed again.
        """
        state = self.state
        held = [claim for claim in state.claims if not claim.released and claim.number != self._making]
        if held:
            ranges = [*state.again, *[(claim.start, claim.end) for claim in held]]
            numbers = {claim.number for claim in held}
            claims = tuple(
                attrs.evolve(each, released=True) if each.number in numbers else each for each in state.claims
            )
            self.state = attrs.evolve(state, claims=claims, again=_joined(ranges))
        self._tell_when_kept(reply if reply is not None else _nobody, lambda: {"released": len(held)})

    # ------------------------------------------------------------------ stored state

    def _tell_when_kept(self, reply: Reply, facts: Callable[[], Mapping[str, Any]]) -> None:
        def kept(error: Exception | None) -> None:
            reply(facts() if error is None else LogError(INTERNAL_ERROR, f"{self.name} can't be kept: {error}"))

        self._when_kept(kept)

    def _when_kept(self, done: Callable[[Exception | None], None]) -> None:
        """Call `done` when all decisions are on disk; at once if they are."""
        if self.state is self._kept:
            done(None)
            return
        self._on_kept.append(done)
        if not self._saving:
            self._save()

    def _save(self) -> None:
        self._saving = True
        state, self._told, self._on_kept = self.state, self._on_kept, []

        def saved(error: Exception | None) -> None:
            self._saving = False
            if not self.is_open:
                return
            if error is None:
                self._kept = state
                self._settle()
                floor = min(state.floor, self.state.floor)
                if floor > self.log.records.first_index and not self.log.closed:
                    self._truncate(self.log, floor)
            self._tell_told(error)
            if self._on_kept and not self._saving:
                self._save()

        def made(error: Exception | None) -> None:
            if error is not None:
                saved(error)
            else:
                self._keeper.save(self.log.name, state, saved)

        self.log.when_made(made)  # the state of a log without files would not be found again

    def _tell_told(self, error: Exception | None) -> None:
        told, self._told = self._told, []
        for done in told:
            self._environment.carefully(partial(done, error))

    def _settle(self) -> None:
        """Settle in the queue, in steps, what saved claims hold; independent of the replies to clients."""
        self._environment.do_in_steps(self, self._settling())

    def _settling(self) -> Iterator[None]:
        taken = self._taken
        while taken and taken[0].number < self._kept.next_number:
            each = taken.popleft()
            each.subscription.settle(each.sequences, each.wire_bytes, moved_to=self.log.name)
            yield from repeat(None, 1 + len(each.sequences) // SETTLED_PER_STEP)

    def _give_back(self) -> None:
        """Requeue all deliveries that are in no saved claim."""
        for _step in self._settling():
            pass
        self._give_all_back()

    def _give_all_back(self) -> None:
        taken, self._taken = self._taken, deque()
        for each in taken:
            each.subscription.requeue(each.sequences, attempted=False)

    def _facts_of(self, number: int) -> Mapping[str, Any]:
        """Return the facts of an assigned claim."""
        for claim in self._kept.claims:
            if claim.number == number:
                return claim.facts()
        return {"claim": number, "from": 0, "to": 0, "released": True}  # acknowledged long ago

    # ------------------------------------------------------------------ the consumer port

    @property
    def label(self) -> str:
        return self.name

    def room(self, subscription: Subscription) -> tuple[int, int]:
        return self._count_left, self._bytes_left

    def wait(self, subscription: Subscription) -> None:
        self._window.charge(1, 0, subscription.source)

    def deliver(self, subscription: Subscription, part: Slice, *, dropped_count: int) -> None:
        messages, sequences = part.messages, part.sequences
        sizes = [len(message.wire) for message in messages]
        count = self._fitting_count(messages, max(sizes))
        if count < len(messages):
            subscription.requeue(sequences[count:], attempted=False)
            messages, sequences = messages[:count], sequences[:count]
            self._count_left = 0
        if count:
            assert self._making is not None, "it takes only while it makes a claim"
            wire_bytes = sum(sizes[:count])
            self._taken.append(_Taken(self._making, subscription, sequences, wire_bytes))
            self._count_left = max(0, self._count_left - count)
            self._bytes_left = max(0, self._bytes_left - wire_bytes)
            self._storing_count += 1
            self.log.take_plain(messages, wire_bytes)
            self.log.when_durable(self._stored)
        self._delivered_seconds = self._environment.clock()
        if self._timer is not None:
            self._timer.cancel()
        is_full = not self._count_left or not self._bytes_left
        self._is_last_turn = is_full  # else there may be more
        self._timer = self._environment.scheduling.call_later(0.0 if is_full else LINGER_SECONDS, self._lingered)
        if is_full:
            self._window.charge(1, 0, subscription.source)

    def _fitting_count(self, messages: SequenceOf[Message], longest_bytes: int) -> int:
        """Return how many of the messages fit into the log; note why the next one does not."""
        if self.log.closed:
            self._refusal = f"{self.log.name} was deleted: ask again"
            return 0
        if [message.large for message in messages].count(None) == len(messages):
            try:
                for head in {id(message.head): message.head for message in messages}.values():
                    self.log.check_plain(head, longest_bytes)
            except BatchError:
                pass  # one of the messages may be the reason: check each
            else:
                return len(messages)
        for place, message in enumerate(messages):
            try:
                if message.large is not None:
                    raise BatchError("its body is in a file (large_body_bytes of the listener)")
                self.log.check_plain(message.head, len(message.wire))
            except BatchError as error:
                self._refusal = (
                    f"{self.state.queue} has a message next that no claim can hold: {error}. Consume it otherwise."
                )
                return place
        return len(messages)

    def cancelled(self, subscription: Subscription, reason: str) -> Iterable[None]:
        """Return nothing: the queue was deleted, and the messages taken from it are in the log."""
        return ()

    # ------------------------------------------------------------------ making one

    def _lingered(self) -> None:
        self._timer = None
        if self._attachment is not None and not self._is_last_turn:
            # Where turns are long the time may be over before the queue had one.
            self._is_last_turn = True
            self._context.request_dispatch()
            return
        if self._attachment is not None and self._waits_for_disk(self._attachment):
            self._is_last_turn = False
            self._timer = self._environment.scheduling.call_later(LINGER_SECONDS, self._lingered)
            return
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.close()
        used_count = self._window.limiter.used_count
        if used_count:
            self._window.release(used_count, 0)
        self._perhaps_complete()

    def _waits_for_disk(self, attachment: ClaimAttachment) -> bool:
        """Return whether the queue has more and will soon have read it. Without this wait a backlog on disk would be
        claimed in tiny portions: those that arrive within LINGER_SECONDS.
        """
        return (
            self._count_left > 0
            and self._bytes_left > 0
            and self._environment.clock() - self._delivered_seconds < DISK_SECONDS
            and attachment.awaits_disk
        )

    def _last_turn(self, _budget: int) -> bool:
        if self._is_last_turn and self._timer is None and self._attachment is not None:
            self._lingered()
        return False

    def _stored(self, how: str, indexes: SequenceOf[tuple[int, int]]) -> None:
        """Note that a delivery is on disk, or that the log is gone."""
        self._storing_count -= 1
        if how == GONE:
            self._refusal = f"{self.log.name} was deleted: ask again"
            self._range = None
            self._give_back()
        else:
            end = indexes[-1][0] + indexes[-1][1]
            self._range = (indexes[0][0] if self._range is None else self._range[0], end)
        self._perhaps_complete()

    def _perhaps_complete(self) -> None:
        if self._attachment is not None or self._storing_count or self._making is None:
            return
        if self._range is not None:
            self._decide(Claim(self._making, *self._range), self.state.again)
        elif self._refusal:
            self._answer(LogError(INVALID_CLAIM, self._refusal))
        else:
            self._answer({"claim": None})

    def _decide(self, claim: Claim, again: tuple[tuple[int, int], ...]) -> None:
        """Save the new claim, then settle its messages, then reply."""
        state = self.state
        self.state = attrs.evolve(
            state,
            next_number=claim.number + 1,
            taken_to=max(state.taken_to, claim.end),
            claims=(*state.claims, claim),
            again=again,
        )
        self.claimed_count += claim.end - claim.start
        self._tell_when_kept(self._answer, lambda: self._facts_of(claim.number))

    def _answer(self, answer: Mapping[str, Any] | LogError) -> None:
        self._making = None
        replies, self._replies = self._replies, []
        for reply in replies:
            self._environment.carefully(partial(reply, answer))

    # ------------------------------------------------------------------ its life

    def _watch(self) -> None:
        state = self.state
        self._grace_timer = self._environment.scheduling.call_later(state.grace_seconds / 4, self._watch)
        held = any(not claim.released for claim in state.claims)
        if held and self._environment.clock() - self._touched_seconds > state.grace_seconds and self._making is None:
            self.release()
        elif state is not self._kept and not self._saving:  # the last save failed, and no request has repeated it
            self._when_kept(_nobody)

    def close(self) -> None:
        """Stop with the broker: requeue what the claim being made has taken."""
        for timer in (self._timer, self._grace_timer):
            if timer is not None:
                timer.cancel()
        if self._attachment is not None:
            self._attachment.close()
        self._give_back()
        self._context.close()
        super().close()

    def abandon(self) -> None:
        """Close the group after a fault of the broker, and answer all requests that wait for a claim or the disk."""
        try:
            self._give_all_back()  # claims are not read before the next start
            self.close()
        finally:
            error = LogError(INTERNAL_ERROR, f"{self.name} was closed: the broker made a mistake with it")
            self._answer(error)
            self._told, self._on_kept = [*self._told, *self._on_kept], []
            self._tell_told(error)

    def facts(self) -> Mapping[str, object]:
        return {"claims": len(self.state.claims), "claimed": self.claimed_count}


def _joined(ranges: SequenceOf[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges in order, without empty ones, adjacent ones joined."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        elif start < end:
            found.append((start, end))
    return tuple(found)


def _nobody(_answer: object) -> None:
    """Ignore the answer: no request waits for it."""
