"""Random lives of five connections on one queue; at the end every message is accounted for.

A model beside the broker knows what was accepted, in which order, and who acknowledged what. Guarantees that it holds
every single delivery against:

- only accepted messages arrive: nothing of an aborted transaction, nothing twice after its ACK;
- whoever gets a message that any client has seen before is told so (`redelivered`), and how often it was refused by
  name at least (`delivery-count`);
- what comes for the first time comes in the order in which its sender sent it, or committed it;
- accepted = acknowledged + left in the queue + dropped by policy: nothing is lost, whatever went down in between.
"""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.protocols.stomp.escaping import SUPPORTED_VERSIONS, Version
from tests.how_often import rounds
from tests.scenarios.client import Client, Delivery
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.stage import Stage

Q = "/queue/q"
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"full": "block", "count_max": 6},
    {"full": "block", "count_max": 1},
    {"full": "drop_oldest", "count_max": 10},
    {"full": "drop_newest", "count_max": 10},
)
PRODUCERS, CONSUMERS = range(2), range(2, 5)
EVERYBODY = range(5)


@attrs.frozen
class Send:
    """SENDs in one piece, perhaps in the client's transaction (begun if there is none)."""

    who: int
    count: int
    in_transaction: bool


@attrs.frozen
class Answer:
    """ACK or NACK of one of the deliveries that the client holds."""

    who: int
    which: int
    nack: bool
    in_transaction: bool


@attrs.frozen
class EndTransaction:
    """COMMIT or ABORT, if the client has a transaction."""

    who: int
    commit: bool


@attrs.frozen
class Leave:
    """The connection ends and another one takes its place."""

    who: int
    politely: bool


@attrs.frozen
class Resubscribe:
    """UNSUBSCRIBE (what the client holds it may still acknowledge) and SUBSCRIBE."""

    who: int


Step = Send | Answer | EndTransaction | Leave | Resubscribe

steps = st.lists(
    st.one_of(
        st.builds(Send, st.sampled_from(EVERYBODY), st.integers(1, 8), st.booleans()),
        st.builds(Answer, st.sampled_from(CONSUMERS), st.integers(0, 9), st.booleans(), st.booleans()),
        st.builds(EndTransaction, st.sampled_from(EVERYBODY), st.booleans()),
        st.builds(Leave, st.sampled_from(EVERYBODY), st.booleans()),
        st.builds(Resubscribe, st.sampled_from(CONSUMERS)),
    ),
    min_size=5,
    max_size=40,
)


@attrs.frozen
class Habits:
    """How one connection speaks and consumes."""

    version: Version
    ack: str
    prefetch: int


habits = st.builds(
    Habits,
    st.sampled_from(SUPPORTED_VERSIONS),
    st.sampled_from(("auto", "client", "client-individual")),
    st.sampled_from((1, 2, 5, 100)),
)


@attrs.frozen(eq=False)
class Held:
    """A delivery that its client has not answered."""

    delivery: Delivery
    line: int
    """Which of its subscriptions it came from: a cumulative answer stays within one."""
    place: int
    """When it came."""


@attrs.define
class Life:
    """One connection, as the model sees it."""

    client: Client
    ack: str
    sent_in_transaction: list[str] = attrs.Factory(list)
    line: int = 0
    held: list[Held] = attrs.Factory(list)
    """In order of arrival."""
    answered_in_transaction: list[tuple[Held, bool]] = attrs.Factory(list)
    in_transaction: bool = False
    newest: dict[str, int] = attrs.Factory(dict)
    """By sender, the place of the newest message that came for the first time."""


class Play:
    """The broker, its clients and the model."""

    def __init__(self, stage: Stage, everybodys_habits: list[Habits]) -> None:
        self.stage = stage
        self.habits = everybodys_habits
        self.lives: list[Life] = []
        self.accepted: dict[str, tuple[str, int]] = {}
        """By body: the sender, and its place in what that sender has sent."""
        self.accepted_counts: dict[str, int] = {}
        self.settled: set[str] = set()
        self.seen_counts: dict[str, int] = {}
        self.refused_counts: dict[str, int] = {}
        """By NACKs that name it."""
        self.made_count = 0

    async def begin(self) -> None:
        for who in EVERYBODY:
            self.lives.append(await self.enter(who))

    async def enter(self, who: int) -> Life:
        habits = self.habits[who]
        client = await self.stage.connect(habits.version)
        ack = habits.ack if habits.version != "1.0" or habits.ack != "client-individual" else "client"
        if who in CONSUMERS:
            await client.subscribe(Q, ack=ack, prefetch_count=str(habits.prefetch))
        return Life(client, ack)

    # ------------------------------------------------------------------ what clients do

    async def take(self, step: Step) -> None:
        life = self.lives[step.who]
        if isinstance(step, Send):
            await self.send(life, step)
        elif isinstance(step, Answer):
            await self.answer(life, step)
        elif isinstance(step, EndTransaction):
            await self.end_transaction(life, commit=step.commit)
        elif isinstance(step, Leave):
            await self.leave(life, step)
        else:
            await life.client.unsubscribe()
            await self.look()
            life.line += 1
            await life.client.subscribe(Q, ack=life.ack, prefetch_count=str(self.habits[step.who].prefetch))
        await self.look()

    async def ensure_transaction(self, life: Life) -> None:
        if not life.in_transaction:
            await life.client.frame("BEGIN", {"transaction": "t"})
            life.in_transaction = True

    async def send(self, life: Life, step: Send) -> None:
        bodies = [f"m{self.made_count + n}" for n in range(step.count)]
        self.made_count += step.count
        if step.in_transaction:
            await self.ensure_transaction(life)
            life.sent_in_transaction += bodies
            await life.client.send_all(Q, bodies, transaction="t")
        else:
            self.accept(life, bodies)
            await life.client.send_all(Q, bodies)

    def accept(self, life: Life, bodies: list[str]) -> None:
        for body in bodies:
            place = self.accepted_counts.get(life.client.name, 0)
            self.accepted_counts[life.client.name] = place + 1
            self.accepted[body] = (life.client.name, place)

    async def answer(self, life: Life, step: Answer) -> None:
        if life.ack == "auto" or not life.held:
            return
        nack = step.nack and life.client.version != "1.0"
        chosen = life.held[step.which % len(life.held)]
        answered = [chosen]
        if life.ack == "client":
            answered = [held for held in life.held if held.line == chosen.line and held.place <= chosen.place]
        life.held = [held for held in life.held if held not in answered]
        headers = {}
        if step.in_transaction:
            await self.ensure_transaction(life)
            headers["transaction"] = "t"
            life.answered_in_transaction += [(held, nack) for held in answered]
        elif not nack:
            self.settled |= {held.delivery.text for held in answered}
        if nack and not step.in_transaction:
            body = chosen.delivery.text
            self.refused_counts[body] = self.refused_counts.get(body, 0) + 1
        await (life.client.nack if nack else life.client.ack)(chosen.delivery, **headers)

    async def end_transaction(self, life: Life, *, commit: bool) -> None:
        if not life.in_transaction:
            return
        if commit:
            self.accept(life, life.sent_in_transaction)
            self.settled |= {held.delivery.text for held, nack in life.answered_in_transaction if not nack}
        else:
            life.held += [held for held, _nack in life.answered_in_transaction]
            life.held.sort(key=lambda held: held.place)
        life.sent_in_transaction, life.answered_in_transaction, life.in_transaction = [], [], False
        await life.client.frame("COMMIT" if commit else "ABORT", {"transaction": "t"})

    async def leave(self, life: Life, step: Leave) -> None:
        await life.client.sync()
        await self.look()
        if step.politely:
            await life.client.disconnect()
            self.note(life)
        else:
            life.client.vanish()
        self.lives[step.who] = await self.enter(step.who)

    # ------------------------------------------------------------------ what they see

    async def look(self) -> None:
        """Everybody receives what there is."""
        for life in self.lives:
            life.client.messages.extendleft(reversed(await life.client.drain(0.01)))
            self.note(life)

    def note(self, life: Life) -> None:
        while life.client.messages:
            self.check(life, life.client.messages.popleft())

    def check(self, life: Life, delivery: Delivery) -> None:
        body = delivery.text
        assert body in self.accepted, f"{body} was never accepted"
        assert body not in self.settled, f"{body} was acknowledged before"
        seen_count = self.seen_counts.get(body, 0)
        assert delivery.redelivered or not seen_count, f"{body} was seen {seen_count} times before: {delivery}"
        assert delivery.redelivered == ("delivery-count" in delivery.headers)
        assert delivery.delivery_count > self.refused_counts.get(body, 0), delivery
        self.seen_counts[body] = seen_count + 1
        if not delivery.redelivered:
            sender, place = self.accepted[body]
            assert place > life.newest.get(sender, -1), f"{body} was overtaken"
            life.newest[sender] = place
        if life.ack == "auto":
            self.settled.add(body)
        else:
            life.held.append(Held(delivery, life.line, len(self.seen_counts) + sum(self.seen_counts.values())))

    async def close_the_books(self) -> None:
        await self.look()
        for life in self.lives:
            life.client.vanish()
        left = [body.decode() for body in await self.stage.drain_queues()]
        reported = self.stage.reported(Q)
        assert len(left) == len(set(left)), "left twice"
        assert not self.settled & set(left)
        assert set(left) <= set(self.accepted)
        assert len(self.accepted) == len(self.settled) + len(left) + reported["dropped_count"]
        if "drop" not in str(self.stage.broker.config.destinations):
            assert reported["dropped_count"] == 0


async def play(policy: dict[str, Any], everybodys_habits: list[Habits], script: list[Step]) -> None:
    """One life of a broker."""
    async with Stage({Q: policy} if policy else None) as stage:
        play = Play(stage, everybodys_habits)
        await play.begin()
        for step in script:
            await play.take(step)
        await play.close_the_books()


@settings(max_examples=rounds(30))
@given(
    policy=st.sampled_from(POLICIES),
    everybodys_habits=st.lists(habits, min_size=len(EVERYBODY), max_size=len(EVERYBODY)),
    script=steps,
)
def test_every_message_is_accounted_for(
    policy: dict[str, Any], everybodys_habits: list[Habits], script: list[Step]
) -> None:
    """See the module."""
    run_in_virtual_time(lambda: play(policy, everybodys_habits, script))
