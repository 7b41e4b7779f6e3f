"""Claims: messages of a queue, taken for a group in numbered portions that can be read again and again until they are
acknowledged. For readers whose work is replayed from a checkpoint, such as Spark.

`claim(n)` takes what the queue has to give, up to a limit, into the group's *claim log*, notes that claim n is so many
records of it, and only then settles them in the queue. Asked again it answers the same. The records are read from the
log as any others: by range, as often as need be, from any connection. `ack(n)` is done with all claims up to n.

A claim lives while somebody says that the group is alive (`touch`), and a grace beyond. Then it is *released*: it reads
as nothing from then on, and its records come again in a later claim. A claim never changes otherwise: whoever replays
one finds the same records, or none.

One *planner* at a time asks for a group and acknowledges. Who opens the group takes it over; one that opened it before
and wakes up late is refused, so it can't acknowledge what it never read, nor keep alive what nobody reads. What is
claimed stays so over a take-over: the new planner may be the old one's next life.

`state` is what was decided, `_kept` what is on disk of it. Nothing is told that is not kept: a claim that was told as
released and came to life after a crash would be acknowledged unread. One save is under way at a time, of the newest
state, so that no older one can come behind it.

What survives: claims are on disk before they are told, and before the queue forgets their messages. A crash between
these two brings those messages twice (at least once, as for any consumer whose acknowledgement got lost). Records that
a crash left behind the last claim are in no claim, ever: the queue has their messages still.

Bound: CLAIMS_MAX claims that are not acknowledged; one claim at a time is made, of at most `count_max` messages.
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
"""Messages of the queue."""
CLAIMS_MAX: Final = 1000
ASKERS_MAX: Final = 100
"""Who wait for the claim that is being made."""
LINGER_SECONDS: Final = 0.02
"""A claim is complete when the queue has given nothing more for so long."""
DISK_SECONDS: Final = 2.0
"""The same where what comes next is on its way from the disk."""
WAIT_SECONDS_MAX: Final = 20.0
CLAIM_COUNT_MAX: Final = 1_000_000
CLAIM_BYTES_MAX: Final = 256 * 1024 * 1024
GRACE_SECONDS: Final = 600.0
"""How long claims outlive the last sign of their group, if it asks for nothing else."""
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
        """As it is told: a released one reads as nothing."""
        end = self.start if self.released else self.end
        return {"claim": self.number, "from": self.start, "to": end, "released": self.released}


@attrs.frozen
class ClaimState:
    """All that is kept of a group."""

    queue: str
    group: str
    log_id: str = ""
    """Of the claim log whose records these are."""
    next_number: int = 1
    taken_to: int = 0
    """Records of the log below this are in some claim, or were, or never will be."""
    claims: tuple[Claim, ...] = ()
    again: tuple[tuple[int, int], ...] = ()
    """Ranges that were released, to be claimed anew."""
    grace_seconds: float = GRACE_SECONDS
    planner: str = ""
    """Who opened it last."""

    @property
    def floor(self) -> int:
        """Records below it nobody will read."""
        starts = [claim.start for claim in self.claims if not claim.released]
        return min([self.taken_to, *starts, *[start for start, _end in self.again]])

    def without_records(self, log_id: str) -> ClaimState:
        """The same over a new log: claims that were not acknowledged read as nothing, and nothing comes again."""
        claims = tuple(Claim(claim.number, 0, 0, released=True) for claim in self.claims)
        return attrs.evolve(self, log_id=log_id, taken_to=0, claims=claims, again=())


class ClaimKeeper(Protocol):
    """Keeps the states of groups. `done` is called on the loop, when it is on disk, or with what went wrong."""

    def save(self, log: str, state: ClaimState, done: Callable[[Exception | None], None]) -> None: ...


class Attached(Protocol):
    """What attaching to a queue gives."""

    @property
    def awaits_disk(self) -> bool:
        """The queue has more, which is on its way from the disk."""

    def close(self) -> None: ...


Reply = Callable[[Mapping[str, Any] | LogError], None]


@attrs.frozen
class _Taken:
    """A delivery of the queue that is not settled. `number`: the claim that it is for."""

    number: int
    subscription: Subscription
    sequences: SequenceOf[int]
    wire_bytes: int


class ClaimGroup(FlowResource):
    """One group of one queue. A consumer of the queue while it makes a claim, and only then."""

    upkeep_bytes = 2 * 1024

    def __init__(
        self,
        log: Log,
        state: ClaimState,
        keeper: ClaimKeeper,
        environment: QueueEnvironment,
        attach: Callable[[ClaimGroup], Attached],
        truncate: Callable[[Log, int], None],
    ) -> None:
        """`state`: as it was kept, or a new one. `attach` makes it a consumer of its queue and raises LogError;
        `truncate` removes records of its log below an index.
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
        """When the save under way is done."""
        self._attachment: Attached | None = None
        self._making: int | None = None
        self._replies: list[Reply] = []
        self._taken: deque[_Taken] = deque()
        """In the order of their claims."""
        self._delivered_seconds = 0.0
        """When the queue gave something last, or the claim was begun."""
        self._range: tuple[int, int] | None = None
        """Of the claim that is being made, as far as it is stored."""
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
        """The group as plain data."""
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
        """Claim `number`: the one that there is, or a new one, if it is the next. It waits so long for a first
        message; a claim that would be empty is not made: `{"claim": null}`. Raises LogError.
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
        """From now on this one plans, and who did before is refused: it may only have slept."""
        self.touch()
        if planner != self.state.planner:
            self.state = attrs.evolve(self.state, planner=planner)
        self._tell_when_kept(reply, dict)

    def check_planner(self, planner: str) -> None:
        """Raise LogError if another one has opened the group meanwhile. Where nobody has, this one does."""
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
        """All claims up to this are done. A number that was never given out is taken, too: then the reader's checkpoint
        is all that is left of an earlier life, and the next claim follows it. What is claimed in this life it can't
        mean: that comes again. Raises LogError.
        """
        self.touch()
        state = self.state
        if self._making is not None and number >= self._making:
            raise LogError(INVALID_CLAIM, f"{self.name}: claim {number} is being made, nobody has it yet")
        if number >= state.next_number:
            unread = [(claim.start, claim.end) for claim in state.claims if not claim.released]
            again = _joined([*state.again, *unread])
            self.state = attrs.evolve(state, claims=(), again=again, next_number=number + 1)
        elif state.claims and state.claims[0].number <= number:
            left = tuple(claim for claim in state.claims if claim.number > number)
            self.state = attrs.evolve(state, claims=left)
        self._tell_when_kept(reply, lambda: {"acked": number})

    def touch(self) -> None:
        """The group is alive."""
        self._touched_seconds = self._environment.clock()

    def set_grace(self, grace_seconds: float) -> None:
        """From now on. Kept with the next change."""
        if grace_seconds != self.state.grace_seconds:
            self.state = attrs.evolve(self.state, grace_seconds=grace_seconds)
            self._grace_timer.cancel()
            self._grace_timer = self._environment.scheduling.call_later(grace_seconds / 4, self._watch)

    def release(self, reply: Reply | None = None) -> None:
        """All claims that are not acknowledged read as nothing from now on; their records come again in later ones. Not
        the one that is being made.
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

    # ------------------------------------------------------------------ what is kept

    def _tell_when_kept(self, reply: Reply, facts: Callable[[], Mapping[str, Any]]) -> None:
        def kept(error: Exception | None) -> None:
            reply(facts() if error is None else LogError(INTERNAL_ERROR, f"{self.name} can't be kept: {error}"))

        self._when_kept(kept)

    def _when_kept(self, done: Callable[[Exception | None], None]) -> None:
        """Call this when all that is decided is on disk; at once, if it is."""
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

        self.log.when_made(made)  # what is kept of a log that is not there is not found again

    def _tell_told(self, error: Exception | None) -> None:
        told, self._told = self._told, []
        for done in told:
            self._environment.carefully(partial(done, error))

    def _settle(self) -> None:
        """The queue may forget what is in claims that are kept: in steps, whoever is told of the claim meanwhile."""
        self._environment.do_in_steps(self, self._settling())

    def _settling(self) -> Iterator[None]:
        taken = self._taken
        while taken and taken[0].number < self._kept.next_number:
            each = taken.popleft()
            each.subscription.settle(each.sequences, each.wire_bytes, moved_to=self.log.name)
            yield from repeat(None, 1 + len(each.sequences) // SETTLED_PER_STEP)

    def _give_back(self) -> None:
        """What is in no claim that is kept goes back to its queue."""
        for _step in self._settling():
            pass
        self._give_all_back()

    def _give_all_back(self) -> None:
        taken, self._taken = self._taken, deque()
        for each in taken:
            each.subscription.give_back(each.sequences, attempted=False)

    def _facts_of(self, number: int) -> Mapping[str, Any]:
        """Of a claim that was given out."""
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
            subscription.give_back(sequences[count:], attempted=False)
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
        """How many of these can lie in the log; why the next one can't is noted."""
        if self.log.closed:
            self._refusal = f"{self.log.name} was deleted: ask again"
            return 0
        if [message.large for message in messages].count(None) == len(messages):
            try:
                for head in {id(message.head): message.head for message in messages}.values():
                    self.log.check_plain(head, longest_bytes)
            except BatchError:
                pass  # one of them may be the reason: look at each
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
        """The queue was deleted; what was taken of it is in the log."""
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

    def _waits_for_disk(self, attachment: Attached) -> bool:
        """The queue has more, and will soon have read it. Else a backlog on disk would be claimed in crumbs: whatever
        happened to come within LINGER_SECONDS.
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
        """A delivery is on disk; or the log is gone."""
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
        """This is the claim: keep it, then settle what it took, then tell."""
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
        elif state is not self._kept and not self._saving:  # the disk failed it, and nobody has asked again
            self._when_kept(_nobody)

    def close(self) -> None:
        """The broker stops: what is being made goes back to its queue."""
        for timer in (self._timer, self._grace_timer):
            if timer is not None:
                timer.cancel()
        if self._attachment is not None:
            self._attachment.close()
        self._give_back()
        self._context.close()
        super().close()

    def abandon(self) -> None:
        """A mistake of the broker: close it, and tell those that wait for a claim, or for the disk."""
        try:
            self._give_all_back()  # nobody reads its claims before the next start
            self.close()
        finally:
            error = LogError(INTERNAL_ERROR, f"{self.name} was closed: the broker made a mistake with it")
            self._answer(error)
            self._told, self._on_kept = [*self._told, *self._on_kept], []
            self._tell_told(error)

    def facts(self) -> Mapping[str, object]:
        return {"claims": len(self.state.claims), "claimed": self.claimed_count}


def _joined(ranges: SequenceOf[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """These in order, without empty ones; those that touch are one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        elif start < end:
            found.append((start, end))
    return tuple(found)


def _nobody(_answer: object) -> None:
    """Nobody asked."""
