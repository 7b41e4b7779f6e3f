"""Claims: messages of a queue, taken for a group in numbered portions that can be read again and again until they are
acknowledged. For readers whose work is replayed from a checkpoint, such as Spark.

`claim(n)` takes what the queue has to give, up to a limit, into the group's *claim log*, notes that claim n is so many
records of it, and only then settles them in the queue. Asked again it answers the same. The records are read from the
log as any others: by range, as often as need be, from any connection. `ack(n)` is done with all claims up to n.

A claim lives while somebody says that the group is alive (`touch`), and a grace beyond. Then it is *released*: it reads
as nothing from then on, and its records come again in a later claim. A claim never changes otherwise: whoever replays
one finds the same records, or none.

What survives: claims are on disk before they are told. A crash between the claim's record and the queue's settlement
brings those messages twice (at least once, as for any consumer whose acknowledgement got lost).

Bound: CLAIMS_MAX claims that are not acknowledged; one claim at a time is made, of at most `count_max` messages.
Source: issue 5 item 3; the research on Spark, section 7b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, Final, Protocol

import attrs

from flow import Flow, FlowController, FlowResource, SourceController, WindowLimiter
from queues.environment import QueueEnvironment
from queues.logs.log import Log
from queues.logs.table import LogError
from queues.slices import Slice
from queues.subscription import Subscription

CLAIMS_MAX: Final = 1000
LINGER_SECONDS: Final = 0.02
"""A claim is complete when the queue has given nothing for so long."""
CLAIM_COUNT_MAX: Final = 1_000_000
CLAIM_BYTES_MAX: Final = 256 * 1024 * 1024
INVALID_CLAIM: Final = "INVALID_CLAIM"


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
    next_number: int = 1
    taken_to: int = 0
    """Records of the log below this are in some claim, or were."""
    claims: tuple[Claim, ...] = ()
    again: tuple[tuple[int, int], ...] = ()
    """Ranges that were released, to be claimed anew."""


class ClaimKeeper(Protocol):
    """Keeps the states of groups. `done` is called on the loop, when it is on disk, or with what went wrong."""

    def save(self, log: str, state: ClaimState, done: Callable[[Exception | None], None]) -> None: ...


class Attached(Protocol):
    """What attaching to a queue gives."""

    def close(self) -> None: ...


Reply = Callable[[Mapping[str, Any] | LogError], None]


class ClaimGroup(FlowResource):
    """One group of one queue. A consumer of the queue while it makes a claim, and only then."""

    def __init__(
        self,
        log: Log,
        state: ClaimState,
        keeper: ClaimKeeper,
        environment: QueueEnvironment,
        attach: Callable[[ClaimGroup], Attached],
        truncate: Callable[[Log, int], None],
        *,
        grace_seconds: float,
    ) -> None:
        """`attach` makes it a consumer of its queue; `truncate` removes records of its log below an index."""
        super().__init__(f"claims of {state.queue} by {state.group}", "claim group", environment.manager)
        self.log = log
        self.state = state
        self.grace_seconds = grace_seconds
        self.claimed_count = 0
        self._keeper = keeper
        self._environment = environment
        self._attach = attach
        self._truncate = truncate
        self._attachment: Attached | None = None
        self._making: int | None = None
        self._replies: list[Reply] = []
        self._taken: list[tuple[Subscription, SequenceOf[int], int]] = []
        self._taken_count = 0
        self._count_left = 0
        self._bytes_left = 0
        self._refusal = ""
        self._timer: Any = None
        self._grace_timer: Any = None
        self._touched_seconds = environment.clock()
        self._window: FlowController[None] = FlowController(
            self,
            Flow(f"claim of {state.group}"),
            WindowLimiter(1, None, clock=environment.clock),
            accept=_never,
            clock=environment.clock,
            counts_memory=False,
        )
        self.open()
        self._watch()

    # ------------------------------------------------------------------ requests

    def describe(self) -> dict[str, Any]:
        """The group as plain data."""
        state = self.state
        first = state.claims[0].number if state.claims else state.next_number
        return {
            "queue": state.queue,
            "group": state.group,
            "log": self.log.name,
            "next": state.next_number,
            "acked": first - 1,
            "claims": [claim.facts() for claim in state.claims],
            "again": sum([end - start for start, end in state.again]),
        }

    def claim(self, number: int, count_max: int, bytes_max: int, reply: Reply) -> None:
        """Claim `number`: the one that there is, or a new one, if it is the next. A claim that would be empty is not
        made: `{"claim": null}`. Raises LogError.
        """
        self.touch()
        state = self.state
        for claim in state.claims:
            if claim.number == number:
                reply(claim.facts())
                return
        if number == self._making:
            self._replies.append(reply)
            return
        if number < state.next_number:
            reply({"claim": number, "from": 0, "to": 0, "released": True})  # acknowledged long ago
            return
        if number > state.next_number:
            raise LogError(INVALID_CLAIM, f"{self.name}: claim {number} can't follow {state.next_number - 1}")
        if self._making is not None or len(state.claims) >= CLAIMS_MAX:
            raise LogError(INVALID_CLAIM, f"{self.name}: {len(state.claims)} claims wait to be acknowledged")
        self._making = number
        self._replies = [reply]
        if state.again:
            (start, end), rest = state.again[0], state.again[1:]
            end = min(end, start + min(count_max, CLAIM_COUNT_MAX))
            left = ((end, state.again[0][1]), *rest) if end < state.again[0][1] else rest
            self._note(attrs.evolve(state, again=left), Claim(number, start, end))
            return
        if state.taken_to < self.log.records.next_index:  # in the log, and in no claim: a crash came between
            self._note(state, Claim(number, state.taken_to, self.log.records.next_index))
            return
        self._count_left = min(count_max, CLAIM_COUNT_MAX)
        self._bytes_left = min(bytes_max, CLAIM_BYTES_MAX)
        self._attachment = self._attach(self)
        self._timer = self._environment.scheduling.call_later(LINGER_SECONDS, self._lingered)

    def ack(self, number: int, reply: Reply) -> None:
        """All claims up to this are done."""
        self.touch()
        state = self.state
        left = tuple(claim for claim in state.claims if claim.number > number)
        if len(left) == len(state.claims):
            reply({"acked": number})
            return
        done = attrs.evolve(state, claims=left)

        def saved(error: Exception | None) -> None:
            if error is not None:
                reply(LogError("INTERNAL_ERROR", str(error)))
                return
            floor = min([self.state.taken_to, *[c.start for c in self.state.claims], *[a for a, _ in self.state.again]])
            if floor > self.log.records.first_index:
                self._truncate(self.log, floor)
            reply({"acked": number})

        self.state = done
        self._keeper.save(self.log.name, done, saved)

    def touch(self) -> None:
        """The group is alive."""
        self._touched_seconds = self._environment.clock()

    def release(self, reply: Reply | None = None) -> None:
        """All claims that are not acknowledged read as nothing from now on; their records come again in later ones."""
        state = self.state
        again = list(state.again)
        claims = []
        for claim in state.claims:
            if not claim.released and claim.end > claim.start:
                again.append((claim.start, claim.end))
            claims.append(attrs.evolve(claim, released=True))
        self.state = attrs.evolve(state, claims=tuple(claims), again=tuple(sorted(again)))

        def saved(error: Exception | None) -> None:
            if reply is not None:
                reply(LogError("INTERNAL_ERROR", str(error)) if error is not None else {"released": len(claims)})

        self._keeper.save(self.log.name, self.state, saved)

    # ------------------------------------------------------------------ the consumer port

    @property
    def label(self) -> str:
        return self.name

    def room(self, subscription: Subscription) -> tuple[int, int]:
        return self._count_left, self._bytes_left

    def wait(self, subscription: Subscription) -> None:
        self._window.charge(1, 0, subscription.source)

    def deliver(self, subscription: Subscription, part: Slice, *, dropped_count: int) -> None:
        count, wire_bytes = len(part), part.wire_bytes
        if any(message.large is not None for message in part.messages):
            subscription.give_back(part.sequences, attempted=False)
            self._refusal = (
                f"{self.state.queue} holds a message whose body is in a file (large_body_bytes of the listener): "
                "claims can't hold those; consume it otherwise"
            )
            self._count_left = 0
            self._close_gate(subscription.source)
            return
        self._taken.append((subscription, part.sequences, wire_bytes))
        self._taken_count += count
        self._count_left -= count
        self._bytes_left = max(0, self._bytes_left - wire_bytes)
        self.log.take_plain(part.messages, wire_bytes)
        if self._timer is not None:
            self._timer.cancel()
        linger = 0.0 if not self._count_left or not self._bytes_left else LINGER_SECONDS
        self._timer = self._environment.scheduling.call_later(linger, self._lingered)
        if not self._count_left or not self._bytes_left:
            self._close_gate(subscription.source)

    def _close_gate(self, source: SourceController) -> None:
        self._window.charge(1, 0, source)

    def cancelled(self, subscription: Subscription, reason: str) -> None:
        """The queue was deleted; what was taken of it is in the log."""

    # ------------------------------------------------------------------ making one

    def _lingered(self) -> None:
        self._timer = None
        assert self._making is not None, "it runs while a claim is made"
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.close()
        used_count = self._window.limiter.used_count
        if used_count:
            self._window.release(used_count, 0)
        if not self._taken_count:
            refusal, self._refusal = self._refusal, ""
            self._answer(LogError(INVALID_CLAIM, refusal) if refusal else {"claim": None})
            return
        self.log.when_settled(self._is_stored)

    def _is_stored(self) -> None:
        assert self._making is not None
        start = self.state.taken_to
        self._note(self.state, Claim(self._making, start, start + self._taken_count))

    def _note(self, state: ClaimState, claim: Claim) -> None:
        """This is the claim: keep it, then settle what it took, then tell."""
        noted = attrs.evolve(
            state,
            next_number=claim.number + 1,
            taken_to=max(state.taken_to, claim.end),
            claims=(*state.claims, claim),
        )
        self._keeper.save(self.log.name, noted, lambda error: self._noted(error, noted, claim))

    def _noted(self, error: Exception | None, noted: ClaimState, claim: Claim) -> None:
        taken, self._taken = self._taken, []
        self._taken_count = 0
        if error is not None:
            # They are in the log, and in no claim yet: the next one will be about them.
            for subscription, sequences, wire_bytes in taken:
                subscription.settle(sequences, wire_bytes)
            self._answer(LogError("INTERNAL_ERROR", f"claim {claim.number} can't be kept: {error}. Ask again."))
            return
        # What was acknowledged meanwhile stays so.
        first = self.state.claims[0].number if self.state.claims else claim.number
        claims = tuple(each for each in noted.claims if each.number >= first)
        self.state = attrs.evolve(noted, claims=claims)
        self.claimed_count += claim.end - claim.start
        for subscription, sequences, wire_bytes in taken:
            subscription.settle(sequences, wire_bytes)
        self._answer(claim.facts())

    def _answer(self, answer: Mapping[str, Any] | LogError) -> None:
        self._making = None
        replies, self._replies = self._replies, []
        for reply in replies:
            reply(answer)

    # ------------------------------------------------------------------ its life

    def _watch(self) -> None:
        self._grace_timer = self._environment.scheduling.call_later(self.grace_seconds / 4, self._watch)
        held = any(not claim.released for claim in self.state.claims)
        if held and self._environment.clock() - self._touched_seconds > self.grace_seconds and self._making is None:
            self.release()

    def close(self) -> None:
        """The broker stops: what is being made goes back to its queue."""
        for timer in (self._timer, self._grace_timer):
            if timer is not None:
                timer.cancel()
        if self._attachment is not None:
            self._attachment.close()
        for subscription, sequences, _wire_bytes in self._taken:
            subscription.give_back(sequences, attempted=False)
        self._taken.clear()
        super().close()

    def facts(self) -> Mapping[str, object]:
        return {"claims": len(self.state.claims), "claimed": self.claimed_count}


def _never(_element: None) -> None:
    raise AssertionError("a window is charged, nothing is added to it")
