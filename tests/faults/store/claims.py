"""What clients were promised, held against what they get: the claims ledger of all fault tests.

Clients write down what they send, what is receipted, delivered, acknowledged and confirmed, as far as they can know it:
an ACK counts as sent when its bytes are on their way, as confirmed when its RECEIPT is here. The ledger outlives the
brokers; each of them is a *life*, ended by a crash, a power cut, or in order. Checked at each delivery and at the end:

    lost            a persistent SEND that was receipted comes, in this life or a later one, until it is acknowledged
    settled         what was acknowledged, and confirmed by a RECEIPT, never comes again
    marked          what was delivered and comes again says `redelivered:true`; what is new does not (but what is
                    delivered while the disk fails may come unmarked, if the process dies before the disk works again)
    one holder      what a living connection holds and has not refused goes to nobody else
    order           what a single reader finds in a queue is in the order of its sender, within one priority and one
                    message group
    volatile        what is not persistent ends with the life in which it was sent
    atomic          of a transaction all or nothing is found after a crash; of one that was not committed, nothing
    dates           what expired between two lives does not come, and nothing comes before it is due
    numbers         a message-id means one persistent message, in all lives

A message to a topic counts once for each durable subscription of it, as if each was a queue.

A violation raises ClaimError with the history of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

DURABLE = ("disk", "shared", "consumed")


class ClaimError(AssertionError):
    """The broker broke a promise."""


@attrs.define(eq=False)
class Commitment:
    """One transaction."""

    name: str
    sends: list[Sent] = attrs.field(factory=list)
    acks: list[Sent] = attrs.field(factory=list)
    committed_in: int | None = None
    """The life in which COMMIT was sent."""
    confirmed: bool = False
    seen_done_in: int | None = None
    """A later life in which something that it sent was found."""
    seen_undone_in: int | None = None
    """A later life in which something that it settled was found."""


@attrs.define(eq=False)
class Sent:
    """One message in one destination."""

    name: str
    destination: str
    priority: int
    producer: str
    place: int
    """In the order of its producer."""
    group: str | None
    body: bytes
    persistent: bool
    life: int
    date_ms: int = 0
    """It may be gone from then on; 0: never."""
    due_ms: int = 0
    """It must not come before."""
    commitment: Commitment | None = None
    receipted: str | None = None
    """The durability that its RECEIPT said."""
    delivered_in: int | None = None
    """The last life in which it came."""
    unnoted: bool = False
    """It was delivered in a life in which the disk failed."""
    perhaps_seen: bool = False
    """Some of its bytes came, not all."""
    owed_to: set[object] = attrs.field(factory=set)
    """Subscriptions that were ending when it came to another one, marked and for the first time: one of them has it on
    its way.
    """
    late_to: set[object] = attrs.field(factory=set)
    """Subscriptions that were ending when it came to another one, marked: a copy to them may have left the broker
    before, and come at any time until they have ended, whoever holds or has acknowledged the message by then.
    """
    holder: object = None
    """The connection that has it now."""
    maybe_settled: bool = False
    """Its settlement is on its way, or was by itself (ack auto)."""
    settled: bool = False
    """That is confirmed."""
    drained: bool = False
    history: list[str] = attrs.field(factory=list)


def place_of(destination: str, durable: str | None) -> str:
    """Under which name the ledger knows it."""
    return destination if durable is None else f"{destination} for {durable}"


class Claims:
    """See the module."""

    def __init__(self, clock: Callable[[], float], now_ms: Callable[[], int], *, exact: bool = True) -> None:
        """`clock`: seconds, for the histories; `now_ms`: the wall clock that the broker goes by. `exact` False: clients
        may not see all that left the broker (sockets), so that a mark may be right though nobody knows why.
        """
        self._clock = clock
        self._now_ms = now_ms
        self._exact = exact
        self.life = 0
        self.messages: dict[tuple[str, str], Sent] = {}
        self.commitments: list[Commitment] = []
        self._by_id: dict[str, Sent] = {}
        self._crash_lives: list[int] = []
        """Lives that did not end in order."""
        self._life_started_ms = now_ms()
        self.disk_fails = False
        """In this life, now and then."""
        self._ending: dict[object, str] = {}
        """Subscriptions whose UNSUBSCRIBE or DISCONNECT is on its way, and their places."""
        self.relays: set[str] = set()
        """Destinations that keep nothing: they may lose what is persistent, too, and their RECEIPTs say so."""
        self.lossy: set[str] = set()
        """Destinations where messages may be dropped, so that none counts as lost."""
        self.delivered_count = 0
        self.receipted_count = 0
        self.came_again_count = 0

    # ------------------------------------------------------------------ lives

    def next_life(self, *, in_order: bool) -> None:
        """The broker is gone, and a new one opens what it left."""
        self._consumed_by_somebody()
        if not in_order:
            self._crash_lives.append(self.life)
        self.life += 1
        self._life_started_ms = self._now_ms()
        self._ending.clear()
        for sent in self.messages.values():
            sent.holder = None
            sent.owed_to.clear()
            sent.late_to.clear()
            self._note(sent, f"--- life {self.life} after {'an orderly end' if in_order else 'a crash'}")

    # ------------------------------------------------------------------ what clients do

    def sent(
        self,
        name: str,
        destination: str,
        *,
        priority: int,
        producer: str,
        place: int,
        group: str | None = None,
        body: bytes,
        persistent: bool,
        date_ms: int = 0,
        delay_ms: int = 0,
        commitment: Commitment | None = None,
    ) -> Sent:
        """A SEND is on its way (in a transaction: it will be with its COMMIT)."""
        sent = Sent(name, destination, priority, producer, place, group, body, persistent, self.life, date_ms)
        sent.commitment = commitment
        if delay_ms:
            sent.due_ms = self._now_ms() + delay_ms
        assert (destination, name) not in self.messages, "names are unique"
        self.messages[destination, name] = sent
        if commitment is not None:
            commitment.sends.append(sent)
        how = "persistent" if persistent else "volatile"
        self._note(sent, f"sent by {producer} ({how}{f', transaction {commitment.name}' if commitment else ''})")
        return sent

    def receipted(self, sents: Iterable[Sent], durability: str | None) -> None:
        """The RECEIPT of this SEND is here."""
        sents = list(sents)
        for sent in sents:
            self.receipted_count += 1
            sent.receipted = durability or "memory"
            self._note(sent, f"receipted: {durability}")
            if self.relays and not self.relays.isdisjoint(each.destination for each in sents):
                continue  # of a composite the least holds
            if sent.persistent and durability not in DURABLE:
                self._fail(sent, f"it is persistent, and its RECEIPT says durability {durability}")
            if not sent.persistent and durability != "memory":
                self._fail(sent, f"it is not persistent, and its RECEIPT says durability {durability}")

    def settling(self, sents: Iterable[Sent]) -> None:
        """An ACK for these is on its way."""
        for sent in sents:
            sent.maybe_settled = True
            self._note(sent, "ACK sent")

    def settled(self, sents: Iterable[Sent]) -> None:
        """The RECEIPT of that ACK is here."""
        for sent in sents:
            sent.settled = True
            self._note(sent, "ACK confirmed")

    def refused(self, sents: Iterable[Sent]) -> None:
        """A NACK for these is on its way."""
        for sent in sents:
            sent.holder = None
            self._note(sent, "NACK sent")

    def given_back(self, sents: Iterable[Sent]) -> None:
        """Their subscription ends, or the transaction that held them after its end is aborted."""
        for sent in sents:
            sent.holder = None
            self._note(sent, "given back")

    def ending(self, subscription: object, place: str) -> None:
        """Its UNSUBSCRIBE is on its way, or the DISCONNECT of its connection: what the broker has delivered to it may
        come to another one first.
        """
        self._ending[subscription] = place

    def ended(self, subscription: object, *, in_order: bool) -> None:
        """Its RECEIPT is here, and so is all that it got. Or its connection broke (not `in_order`)."""
        self._ending.pop(subscription, None)
        for sent in self.messages.values():
            sent.late_to.discard(subscription)
            if subscription not in sent.owed_to:
                continue
            sent.owed_to.discard(subscription)
            if not in_order:
                sent.perhaps_seen = True
                sent.owed_to.clear()
            elif not sent.owed_to:
                self._check_crashed_since(sent)

    def gone(self, holder: object, why: str) -> None:
        """This connection has ended; what it held may go to others."""
        for sent in self.messages.values():
            if sent.holder is holder:
                sent.holder = None
                self._note(sent, why)

    def begun(self, name: str) -> Commitment:
        """BEGIN is on its way."""
        commitment = Commitment(name)
        self.commitments.append(commitment)
        return commitment

    def committing(self, commitment: Commitment) -> None:
        """COMMIT is on its way. Its SENDs are not before now."""
        commitment.committed_in = self.life
        for sent in commitment.acks:
            sent.maybe_settled = True
        for sent in [*commitment.sends, *commitment.acks]:
            self._note(sent, f"COMMIT {commitment.name} sent")

    def committed(self, commitment: Commitment) -> None:
        """The RECEIPT of that COMMIT is here."""
        commitment.confirmed = True
        for sent in commitment.sends:
            sent.receipted = sent.receipted or "committed"
            self._note(sent, f"COMMIT {commitment.name} confirmed")
        self.settled(commitment.acks)

    # ------------------------------------------------------------------ what clients get

    def delivered(
        self,
        headers: Mapping[str, str],
        body: bytes,
        *,
        durable: str | None = None,
        holder: object,
        auto: bool,
        subscription: object = None,
    ) -> Sent:
        """A MESSAGE is here. Raises ClaimError."""
        self.delivered_count += 1
        name = headers["name"]
        destination = place_of(headers["destination"], durable)
        sent = self.messages.get((destination, name))
        if sent is None:
            raise ClaimError(f"{name} in {destination} was never sent there")
        redelivered = headers.get("redelivered") == "true"
        came_before = sent.delivered_in is not None
        mark = f"redelivered, count {headers.get('delivery-count')}" if redelivered else "as new"
        self._note(sent, f"delivered {mark}, number {headers['message-id'].partition('-')[2]}, to {subscription}")
        if body != sent.body:
            self._fail(sent, f"its body is {body[:60]!r} of {len(body)} bytes, sent were {len(sent.body)}")
        if subscription in sent.late_to:
            self._came_late(sent, subscription, redelivered=redelivered)
            return sent
        if sent.settled:
            self._fail(sent, "it was acknowledged, that was confirmed, and it came back")
        if sent.commitment is not None and sent.commitment.committed_in is None:
            self._fail(sent, f"its transaction {sent.commitment.name} was never committed")
        if not sent.persistent and self.life > sent.life:
            self._fail(sent, f"it is not persistent, was sent in life {sent.life}, and came in life {self.life}")
        if came_before and not redelivered and not (sent.unnoted and sent.delivered_in != self.life):
            self._fail(sent, f"it came before, in life {sent.delivered_in}, and is not marked")
        if redelivered and not (came_before or sent.perhaps_seen) and durable is None:
            # Durable subscriptions mark all that was on its way to a consumer that left.
            # After a crash what comes next may be marked, to be on the safe side.
            sent.owed_to = self._ending_at(destination)
            if not sent.owed_to:
                self._check_crashed_since(sent)
        if sent.holder is not None:
            self._fail(sent, f"it is in the hands of {sent.holder}")
        if sent.date_ms and sent.date_ms <= self._life_started_ms:
            self._fail(sent, "it had expired before this life began")
        if sent.due_ms > self._now_ms():
            self._fail(sent, f"it is due in {sent.due_ms - self._now_ms()} ms only")
        if sent.persistent:
            other = self._by_id.setdefault(headers["message-id"], sent)
            if other.name != sent.name:
                self._fail(sent, f"its message-id is that of {other.name} in {other.destination}")
        if redelivered:
            sent.late_to |= self._ending_at(destination) - {subscription}
        self.came_again_count += came_before
        self._look_at_transactions(sent)
        sent.delivered_in = self.life
        sent.unnoted = self.disk_fails
        # That it came shows that no settlement of it has taken effect.
        sent.maybe_settled = auto
        sent.holder = None if auto else holder
        return sent

    def _ending_at(self, destination: str) -> set[object]:
        return {ending for ending, place in self._ending.items() if place == destination}

    def _came_late(self, sent: Sent, subscription: object, *, redelivered: bool) -> None:
        """It left the broker before the one that came first."""
        sent.late_to.discard(subscription)
        if subscription in sent.owed_to:
            if redelivered:
                self._check_crashed_since(sent)
            sent.owed_to.clear()

    def begun_to_come(self, destination: str, name: str) -> None:
        """Some bytes of a MESSAGE came before its connection ended."""
        sent = self.messages.get((destination, name))
        if sent is not None:
            sent.perhaps_seen = True
            self._note(sent, "some bytes of it came")

    def _look_at_transactions(self, sent: Sent) -> None:
        """All or nothing, as seen in lives after the one of COMMIT."""
        own = sent.commitment
        if own is not None and own.committed_in is not None and own.committed_in < self.life:
            own.seen_done_in = self.life if own.seen_done_in is None else own.seen_done_in
            if own.seen_undone_in is not None:
                self._fail(sent, f"transaction {own.name} was undone in life {own.seen_undone_in}: an ACK of it was")
        for commitment in self.commitments:
            if sent in commitment.acks and commitment.committed_in is not None:
                if commitment.committed_in == self.life:
                    continue
                commitment.seen_undone_in = self.life
                if commitment.seen_done_in is not None:
                    self._fail(
                        sent,
                        f"transaction {commitment.name} acknowledged it, and took effect: a SEND was found in life "
                        f"{commitment.seen_done_in}",
                    )

    # ------------------------------------------------------------------ the end

    def drained(self, found: Iterable[tuple[Sent, int]]) -> None:
        """A single reader found these in this order, each with its priority. Raises ClaimError."""
        last: dict[tuple[object, ...], Sent] = {}
        for sent, priority in found:
            sent.drained = True
            if sent.due_ms:
                continue
            key = sent.destination, priority, sent.producer, sent.group
            before = last.get(key)
            if before is not None and before.place >= sent.place:
                self._fail(
                    sent, f"it comes behind {before.name}, which was sent after it: {before.place} and {sent.place}"
                )
            last[key] = sent

    def nothing_is_lost(self) -> None:
        """Everything was drained: what had to come has come. Raises ClaimError."""
        self._consumed_by_somebody()
        for sent in self.messages.values():
            if sent.drained or self._may_be_gone(sent):
                continue
            if sent.receipted is not None and (sent.persistent or sent.life == self.life):
                self._fail(sent, f"it was receipted ({sent.receipted}), nobody acknowledged it, and it is lost")
            own = sent.commitment
            if own is not None and own.seen_done_in is not None and sent.persistent:
                self._fail(sent, f"transaction {own.name} took effect, as other SENDs of it show, but for this one")

    def _consumed_by_somebody(self) -> None:
        """All has been read that has left the broker: so who was told "consumed" knows by whom."""
        for sent in self.messages.values():
            if sent.receipted == "consumed" and sent.delivered_in is None and not self._may_be_gone(sent):
                self._fail(sent, "its RECEIPT said that it was consumed, and nobody got it")

    def _may_be_gone(self, sent: Sent) -> bool:
        """Somebody may have settled it, or its date has come."""
        own = sent.commitment
        return (
            sent.maybe_settled
            or sent.settled
            or sent.destination in self.lossy
            or (own is not None and own.committed_in is None)
            or bool(sent.date_ms and sent.date_ms <= self._now_ms())
        )

    def _note(self, sent: Sent, what: str) -> None:
        sent.history.append(f"{self._clock():9.4f} {what}")

    def _check_crashed_since(self, sent: Sent) -> None:
        if self._exact and not any(sent.life <= life < self.life for life in self._crash_lives):
            self._fail(sent, "it never came before, there was no crash since it was sent, and it is marked")

    def _fail(self, sent: Sent, why: str) -> None:
        history = "\n    ".join(sent.history)
        raise ClaimError(
            f"{sent.name} in {sent.destination}, priority {sent.priority}: {why}. Life {self.life}.\n    {history}"
        )
