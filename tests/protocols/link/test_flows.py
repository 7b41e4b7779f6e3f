"""Many flows over one link: in order, in turns, confirmed, ended, lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluiceway.protocols.link.flow import REFUSED, Flow
from sluiceway.protocols.link.machine import (
    FLOWS_MAX,
    LEASE_SECONDS,
    PING_SECONDS,
    PING_SECONDS_MIN,
    SILENCE_SECONDS,
    TURN_BYTES,
    WRITE_BYTES,
)
from sluiceway.protocols.link.records import (
    WORDS_BYTES_MAX,
    Kind,
    LinkFault,
    OpeningTooLargeError,
    encode,
    encode_taken,
)
from tests.protocols.link.pairs import Noting, linked, talk, written


def test_what_is_sent_arrives_with_the_ends_of_frames() -> None:
    """Both ways, and the opening record first."""
    one, other = linked()
    here = Noting()
    flow = one.machine.open(b"for client 1", here)
    flow.send(Kind.PART, b"half ")
    flow.send(Kind.DATA, b"a frame")
    talk(one, other)
    (there,) = other.opened
    assert there.opening == b"for client 1"
    assert there.data == [(Kind.DATA, b"half a frame")]
    assert there.settled_count == 1
    assert there.flow is not None
    there.flow.send(Kind.CONTROL, b"RECEIPT")
    talk(one, other)
    assert here.data == [(Kind.CONTROL, b"RECEIPT")]


def test_all_flows_of_a_turn_are_one_write() -> None:
    """Not a write for each flow, let alone each message."""
    one, other = linked()
    flows = [one.machine.open(b"", Noting()) for _ in range(100)]
    for flow in flows:
        flow.send(Kind.DATA, b"x" * 100)
    data = written(one)
    assert not written(one)
    other.machine.receive(data)
    assert all(user.received == b"x" * 100 for user in other.opened)


def test_a_flow_with_much_to_write_delays_the_others_by_one_portion() -> None:
    """Fair turns: ten little flows are in the first write, beside a gigantic one."""
    one, other = linked()
    flows = [one.machine.open(b"", Noting()) for _ in range(11)]
    flows[0].send(Kind.DATA, bytes(8 * WRITE_BYTES))
    for flow in flows[1:]:
        flow.send(Kind.DATA, b"little")
    other.machine.receive(written(one))
    big, *little = other.opened
    assert all(user.received == b"little" for user in little)
    assert TURN_BYTES <= len(big.received) <= WRITE_BYTES + 3 * TURN_BYTES
    talk(one, other)
    assert len(big.received) == 8 * WRITE_BYTES


def test_confirmations_tell_what_was_read_and_what_was_done() -> None:
    """Several of one turn are one record."""
    one, other = linked()
    here = Noting()
    flow = one.machine.open(b"", here)
    flow.send(Kind.PART, b"0123456789")
    talk(one, other)
    assert flow.unread_bytes == 10
    there = other.opened[0].flow
    assert there is not None
    there.took(4, 0)
    there.took(10, 6)
    talk(one, other)
    assert here.confirmations == [(10, 6)]
    assert flow.unread_bytes == 0


@pytest.mark.parametrize(("read_bytes", "done_bytes"), [(11, 0), (4, 5), (3, 3)])
def test_a_confirmation_that_can_not_be_is_refused(read_bytes: int, done_bytes: int) -> None:
    """Of bytes that were never sent, or less than before."""
    one, other = linked()
    flow = one.machine.open(b"", Noting())
    flow.send(Kind.PART, b"0123456789")
    talk(one, other)
    one.machine.receive(encode_taken(flow.number, 4, 4))
    with pytest.raises(LinkFault):
        one.machine.receive(encode_taken(flow.number, read_bytes, done_bytes))


def test_a_flow_ends_in_order_and_is_forgotten() -> None:
    """Behind what was sent, with its reason; both sides forget the flow when both have ended it."""
    one, other = linked()
    here = Noting()
    flow = one.machine.open(b"", here)
    flow.send(Kind.DATA, b"last words")
    flow.end("its client has gone")
    flow.send(Kind.DATA, b"too late")
    talk(one, other)
    there = other.opened[0]
    assert there.received == b"last words"
    assert there.end == ("its client has gone", False)
    assert there.flow is not None
    there.flow.end("so be it")
    talk(one, other)
    assert here.end == ("so be it", False)
    assert not one.machine.flows
    assert not other.machine.flows


def test_a_lost_link_tells_every_flow_once() -> None:
    """With the reason; one that was over is not told again."""
    one, other = linked()
    users = [Noting() for _ in range(3)]
    flows = [one.machine.open(b"", user) for user in users]
    talk(one, other)
    first = other.opened[0].flow
    assert first is not None
    first.end("over")
    talk(one, other)
    one.machine.end("connection lost")
    one.machine.end("again")
    assert [user.end for user in users] == [("over", False), ("connection lost", True), ("connection lost", True)]
    flows[1].send(Kind.DATA, b"nobody is there")
    assert not written(one)


def test_a_half_open_link_is_found() -> None:
    """A sign of life is asked for now and then, a sign of life is enough, and long silence is the end."""
    one, other = linked()
    assert one.machine.look() == LEASE_SECONDS / 3
    one.time.seconds = PING_SECONDS
    assert one.machine.look() == SILENCE_SECONDS - PING_SECONDS
    talk(one, other, PING_SECONDS + 1)
    assert one.machine.look() == pytest.approx(LEASE_SECONDS / 3 - 1)
    one.time.seconds = 3 * PING_SECONDS
    one.machine.look()
    one.time.seconds = PING_SECONDS + 1 + SILENCE_SECONDS
    with pytest.raises(LinkFault, match="nothing was heard"):
        one.machine.look()


def test_a_lease_counts_from_the_question_and_is_shorter_than_the_other_end_waits() -> None:
    one, other = linked()
    assert LEASE_SECONDS < 0.9 * SILENCE_SECONDS, "clocks may run apart by a tenth"
    renewed: list[float] = []
    one.machine.lease_renewed = lambda: renewed.append(one.time.seconds)
    one.time.seconds = 4.0
    one.machine.look()
    talk(one, other, 7.0)
    one.time.seconds = 4.0 + LEASE_SECONDS - 0.01
    assert one.machine.may_deliver()
    one.machine.look()
    one.time.seconds = 4.0 + LEASE_SECONDS
    assert not one.machine.may_deliver(), "though the answer came later"
    one.machine.receive(encode(Kind.SHARDS, 0, b"[]"))
    assert not one.machine.may_deliver(), "what the other end says does not tell what it has heard"
    talk(one, other, one.time.seconds)
    assert one.machine.may_deliver()
    assert renewed == [4.0 + LEASE_SECONDS]
    one.machine.is_hung_up = True
    assert not one.machine.may_deliver(), "what is left to read may be with others"


def test_a_lease_is_no_longer_than_the_session_of_the_hub_that_grants_it() -> None:
    """Behind its session another hub delivers the same messages. Questions come more often then."""
    one, other = linked()
    other.time.certain_seconds = 1.5
    one.time.seconds = 10.0
    one.machine.look()
    talk(one, other, 10.0)
    assert one.machine.look() == pytest.approx(0.5)
    one.time.seconds = 11.49
    assert one.machine.may_deliver()
    one.time.seconds = 11.51
    assert not one.machine.may_deliver()
    other.time.certain_seconds = -3.0
    one.machine.look()
    talk(one, other, 11.6)
    assert not one.machine.may_deliver()
    assert one.machine.look() == pytest.approx(PING_SECONDS_MIN - 0.09)


@pytest.mark.parametrize(("payload", "words"), [(b"\0\0", "in 2 bytes"), (b"", "that was not said")])
def test_an_answer_that_can_t_be_is_refused(payload: bytes, words: str) -> None:
    one, _other = linked()
    if payload:
        one.time.seconds = PING_SECONDS
        one.machine.look()
    with pytest.raises(LinkFault, match=words):
        one.machine.receive(encode(Kind.PONG, 0, payload))


def test_a_hub_of_an_earlier_version_grants_by_its_patience() -> None:
    one, _other = linked()
    one.time.seconds = PING_SECONDS
    one.machine.look()
    one.machine.receive(encode(Kind.PONG, 0))
    one.time.seconds = PING_SECONDS + LEASE_SECONDS - 0.01
    assert one.machine.may_deliver()


def test_a_goodbye_lets_open_flows_end_and_takes_no_new_ones() -> None:
    """A flow that was opened before the goodbye came is ended by the side that leaves."""
    one, other = linked()
    here = Noting()
    flow = one.machine.open(b"", here)
    talk(one, other)
    other.machine.part("it stops")
    late = Noting()
    one.machine.open(b"", late)
    talk(one, other)
    assert one.machine.goodbye == "it stops"
    assert not one.machine.takes_flows
    assert late.end == ("this hub stops", False)
    flow.send(Kind.DATA, b"still")
    talk(one, other)
    assert other.opened[0].received == b"still"


def test_nothing_is_confirmed_behind_the_end() -> None:
    """Neither before the other end has ended, too, nor afterwards: the link stays, and a flow is closed once."""
    one, other = linked()
    here = Noting()
    flow = one.machine.open(b"", here)
    talk(one, other)
    there = other.opened[0].flow
    assert there is not None
    there.send(Kind.DATA, b"0123456789")
    there.end("over")
    talk(one, other)
    assert here.end == ("over", False)
    flow.took(4, 4)
    flow.end("over here, too")
    flow.took(10, 10)
    talk(one, other)
    assert other.opened[0].confirmations == [(4, 4)]
    flow.took(10, 10)
    assert not written(one)
    assert not one.machine.flows
    assert not other.machine.flows


def test_a_confirmation_for_a_flow_that_is_closed_is_harmless() -> None:
    """A flow that never was is something else."""
    one, other = linked()
    numbers = []
    for opener, taker in ((one, other), (other, one)):
        flow = opener.machine.open(b"", Noting())
        talk(one, other)
        numbers.append(flow.number)
        flow.end("over")
        talk(one, other)
        taker.machine.receive(encode_taken(flow.number, 0, 0))
        ended = taker.opened[0].flow
        assert ended is not None
        ended.end("over")
        talk(one, other)
    assert not one.machine.flows
    assert not other.machine.flows
    for number in numbers:
        for end in (one, other):
            end.machine.receive(encode_taken(number, 0, 0))
            with pytest.raises(LinkFault, match="not open"):
                end.machine.receive(encode_taken(number + 2, 0, 0))


def test_an_opening_record_that_is_too_large_is_not_sent() -> None:
    """The largest one arrives."""
    one, other = linked()
    with pytest.raises(OpeningTooLargeError, match="65537 bytes are too many"):
        one.machine.open(bytes(WORDS_BYTES_MAX + 1), Noting())
    assert not one.machine.flows
    one.machine.open(bytes(WORDS_BYTES_MAX), Noting())
    talk(one, other)
    assert [len(user.opening) for user in other.opened] == [WORDS_BYTES_MAX]


def test_an_invalid_opening_record_costs_its_flow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opener reads why; what it has sent is dropped; other flows go on."""
    one, other = linked()
    flow = one.machine.open(b"", Noting())
    talk(one, other)

    def refuse(_flow: Flow, _payload: bytes) -> Noting:
        raise LinkFault("nobody knows it")

    monkeypatch.setattr(other.machine, "_opened", refuse)
    user = Noting()
    refused = one.machine.open(b"nonsense", user)
    refused.send(Kind.DATA, b"x")
    talk(one, other)
    assert user.end == (f"{REFUSED}nobody knows it", False)
    refused.end("so be it")
    flow.send(Kind.DATA, b"still")
    talk(one, other)
    assert other.opened[0].received == b"still"
    assert list(one.machine.flows) == list(other.machine.flows) == [flow.number]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (encode(Kind.DATA, 3, b"x"), "flow 3, which is not open"),
        (encode(Kind.OPEN, 3), "one of this side"),
        (encode(Kind.OPEN, 0), "without a flow"),
        (encode(Kind.PING, 2), "with a flow"),
        (encode(Kind.HELLO, 0), "in the state OPEN"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_refused(record: bytes, words: str) -> None:
    """In words."""
    one, _other = linked()
    with pytest.raises(LinkFault, match=words):
        one.machine.receive(record)


def test_a_flood_of_flows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of flows of one link."""
    assert FLOWS_MAX > 1000
    monkeypatch.setattr("sluiceway.protocols.link.machine.FLOWS_MAX", 5)
    one, _other = linked()
    with pytest.raises(LinkFault, match="more than 5 flows"):
        one.machine.receive(b"".join(encode(Kind.OPEN, number) for number in range(2, 20, 2)))


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_no_bytes_of_a_proved_peer_bring_the_machine_down(pieces: list[bytes]) -> None:
    """A LinkFault, or nothing."""
    one, _other = linked()
    try:
        for piece in pieces:
            one.machine.receive(piece)
    except LinkFault as fault:
        assert str(fault)


class Conversation(RuleBasedStateMachine):
    """Two ends send what they like, and each write arrives in two pieces: order and confirmations hold."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = linked()
        self.flows: list[tuple[Flow, Noting]] = []
        self.sent: list[bytes] = []

    @rule()
    def open(self) -> None:
        user = Noting()
        self.flows.append((self.ends[0].machine.open(b"o", user), user))
        self.sent.append(b"")

    @rule(place=st.integers(0, 5), data=st.binary(min_size=1, max_size=50), many=st.sampled_from([1, 1, 1, 5000]))
    def send(self, place: int, data: bytes, many: int) -> None:
        if self.flows:
            place %= len(self.flows)
            self.flows[place][0].send(Kind.PART, data * many)
            self.sent[place] += data * many

    @rule(at=st.integers(0, 100_000))
    def write(self, at: int) -> None:
        data = written(self.ends[0])
        self.ends[1].machine.receive(data[:at])
        self.ends[1].machine.receive(data[at:])

    @rule()
    def confirm(self) -> None:
        for user in self.ends[1].opened:
            assert user.flow is not None
            user.flow.took(len(user.received), len(user.received))
        self.ends[0].machine.receive(written(self.ends[1]))

    @invariant()
    def holds(self) -> None:
        for user, sent, (flow, _here) in zip(self.ends[1].opened, self.sent, self.flows, strict=False):
            assert sent.startswith(user.received)
            assert flow.peer_read_bytes <= len(user.received)
            assert flow.sent_bytes == len(sent)


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=30, stateful_step_count=25)
