"""Messages moved from another broker. Here the other one is a broker of ours, which knows the headers of both; with the
real ones: tests/interop/test_migration.py.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from sluiceway import EmbeddedBroker
from sluiceway.cli import main
from sluiceway.client.address import Address
from sluiceway.client.link import Link
from sluiceway.migration.ledger import Arrival, Ledger, LedgerError, Standing, Tally
from sluiceway.migration.moving import Mover
from sluiceway.migration.translation import ACTIVEMQ, RABBITMQ, Translation
from sluiceway.migration.verdicts import Verdict, outcome
from sluiceway.protocols.stomp.frames import Frame

MESSAGES = 60
CREDIT = 20
IDLE_SECONDS = 0.3


@pytest.fixture(scope="module")
def old() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def new() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(destinations={"/queue/small": {"count_max": 5, "full": "reject"}}) as broker:
        yield broker


def address(broker: EmbeddedBroker) -> Address:
    return Address.parse(f"stomp://{broker.host}:{broker.port}")


def fill(broker: EmbeddedBroker, queue: str, count: int = MESSAGES, **headers: str) -> None:
    with Link(address(broker)) as link:
        for number in range(count):
            link.send(f"/queue/{queue}", str(number).encode(), headers, receipt=True)
        link.wait_receipts()


def drained(broker: EmbeddedBroker, queue: str) -> list[Frame]:
    """All messages of a queue: it holds no more than the sentinel behind them."""
    found = []
    with Link(address(broker)) as link:
        link.send(f"/queue/{queue}", b"end", {"priority": "0"})
        link.subscribe(f"/queue/{queue}")
        while (frame := link.next_message(10)) is not None and frame.body != b"end":
            found.append(frame)
    return found


class KilledError(BaseException):
    """Stands for `kill -9`: nothing is done any more."""


class DyingLedger(Ledger):
    """Dies instead of the n-th step, or right after it."""

    def __init__(self, *arguments: Any, die: str, at: int) -> None:
        self.die, self.at = die, at
        super().__init__(*arguments)

    def begin(self, arrivals: Any) -> Any:
        return self._step("begin", lambda: super(DyingLedger, self).begin(arrivals))

    def moved(self, number: int) -> None:
        self._step("moved", lambda: super(DyingLedger, self).moved(number))

    def _step(self, name: str, step: Any) -> Any:
        self.at -= name in self.die
        if self.die == f"before {name}" and self.at == 0:
            raise KilledError
        done = step()
        if self.die == f"after {name}" and self.at == 0:
            raise KilledError
        return done


class DyingLink(Link):
    """Dies at the n-th ACK or SEND."""

    at = 10**9

    def acknowledge(self, token: str) -> None:
        self._count()
        super().acknowledge(token)

    def send(self, *arguments: Any, **named: Any) -> None:
        self._count()
        super().send(*arguments, **named)

    def _count(self) -> None:
        self.at -= 1
        if self.at == 0:
            raise KilledError


def move(
    old: EmbeddedBroker, new: EmbeddedBroker, queue: str, path: Path, translation: Translation, die: str = ""
) -> Tally:
    """One run; `die`: where it is killed."""
    with DyingLedger(path, "old", "new", die=die, at=2) as ledger:
        source, target = DyingLink(address(old)), DyingLink(address(new))
        if die == "amid ACKs":
            source.at = CREDIT + 5
        elif die == "amid SENDs":
            target.at = CREDIT + 5
        try:
            source.open()
            target.open()
            Mover(source, target, translation, ledger, credit_count=CREDIT, idle_seconds=IDLE_SECONDS).move(queue)
        finally:
            source.cut()
            target.cut()
        return ledger.tally(f"/queue/{queue}")


@pytest.mark.parametrize(
    ("translation", "die", "doubled"),
    [
        (ACTIVEMQ, "before begin", False),
        (ACTIVEMQ, "after begin", False),
        (ACTIVEMQ, "amid SENDs", False),
        (ACTIVEMQ, "before moved", False),
        (ACTIVEMQ, "after moved", False),
        (ACTIVEMQ, "amid ACKs", False),
        (RABBITMQ, "amid SENDs", True),
        (RABBITMQ, "after moved", True),
        (RABBITMQ, "amid ACKs", True),
        (attrs.evolve(RABBITMQ, id_header="key"), "amid ACKs", False),
    ],
    ids=lambda value: getattr(value, "broker", str(value)),
)
def test_a_run_that_is_killed_loses_nothing_and_the_next_one_counts_what_may_be_doubled(
    old: EmbeddedBroker, new: EmbeddedBroker, tmp_path: Path, translation: Translation, die: str, doubled: bool
) -> None:
    """With ids that are unique, what was confirmed is not sent again, and the rest is taken once."""
    queue = f"jobs.{tmp_path.name}"
    with Link(address(old)) as link:
        for number in range(MESSAGES):
            link.send(f"/queue/{queue}", str(number).encode(), {"key": f"k{number}"}, receipt=True)
        link.wait_receipts()
    with pytest.raises(KilledError):
        move(old, new, queue, tmp_path / "ledger", translation, die)
    tally = move(old, new, queue, tmp_path / "ledger", translation)
    arrived = Counter(frame.body for frame in drained(new, queue))
    assert set(arrived) == {str(number).encode() for number in range(MESSAGES)}
    assert arrived.total() - MESSAGES <= tally.doubled_count, "every double was announced"
    assert (tally.seen_count, tally.moved_count) == (MESSAGES, MESSAGES)
    if not doubled:
        assert (arrived.total(), tally.doubled_count) == (MESSAGES, 0)
    assert not drained(old, queue)


def test_headers_go_on_under_names_that_mean_here_what_they_meant_there() -> None:
    received = {
        "subscription": "1",
        "destination": "/queue/a",
        "message-id": "ID:x",
        "ack": "7",
        "redelivered": "true",
        "receipt": "3",
        "content-length": "2",
        "content-type": "text/plain",
        "persistent": "true",
        "priority": "7",
        "correlation-id": "c",
        "reply-to": "/remote-temp-queue/ID:y",
        "transformation": "jms-map-json",
        "AMQ_SCHEDULED_DELAY": "5",
        "producer-id": "app",
        "user": "x",
        "color": "red",
    }
    common = {
        "content-type": "text/plain",
        "persistent": "true",
        "priority": "7",
        "correlation-id": "c",
        "color": "red",
    }
    renamed = {
        "original-redelivered": "true",
        "original-reply-to": "/remote-temp-queue/ID:y",
        "original-transformation": "jms-map-json",
        "original-AMQ_SCHEDULED_DELAY": "5",
        "original-producer-id": "app",
        "original-user": "x",
    }
    assert ACTIVEMQ.headers(received) == common | renamed | {"original-message-id": "ID:x"}
    assert RABBITMQ.headers(received) == common | renamed, "its message-id is one of the session"
    assert ACTIVEMQ.headers({"expires": "0", "reply-to": "/queue/b"}) == {"reply-to": "/queue/b"}
    assert ACTIVEMQ.headers({"expires": "9", "expiration": "x"}) == {"expires": "9", "original-expiration": "x"}
    assert RABBITMQ.headers({"expires": "x", "expiration": "9"}) == {"expiration": "9", "original-expires": "x"}
    assert RABBITMQ.headers({"x-delay": "-5", "reply-to": "/amq/queue/b"}) == {
        "original-x-delay": "-5",
        "reply-to": "/queue/b",
    }
    assert RABBITMQ.headers({"persistent": "false"}, persistent=True) == {"persistent": "true"}
    assert RABBITMQ.destination("a/b") == "/amq/queue/a%2Fb"


def test_the_same_message_has_the_same_key_and_another_one_another() -> None:
    def frame(body: bytes, **headers: str) -> Frame:
        return Frame("MESSAGE", {name.replace("_", "-"): value for name, value in headers.items()}, body)

    first = frame(b"x", a="1", message_id="s1@@1", ack="1", redelivered="false")
    assert RABBITMQ.key(first) == RABBITMQ.key(frame(b"x", message_id="s2@@9", a="1", ack="8", redelivered="true"))
    assert RABBITMQ.key(first) != RABBITMQ.key(frame(b"y", a="1"))
    assert RABBITMQ.key(frame(b"x", a="1b")) != RABBITMQ.key(frame(b"x", a1="b"))
    assert ACTIVEMQ.key(first) != ACTIVEMQ.key(frame(b"x", a="1", message_id="s1@@2"))


def test_messages_with_the_same_content_are_never_taken_for_one(tmp_path: Path) -> None:
    """Only an id says for certain that a message is at the target: of two with one content, one may be left."""
    path = tmp_path / "ledger"
    same = [Arrival("/queue/a", "~same")] * 3
    with Ledger(path, "old", "new") as ledger:
        number, standings = ledger.begin(same)
        assert standings == [Standing.FRESH] * 3
        ledger.moved(number)
    with Ledger(path, "old", "new") as ledger:
        number, standings = ledger.begin([same[0]] * 5)
        assert standings == [Standing.TWICE] * 3 + [Standing.FRESH] * 2
        ledger.moved(number)
        ledger.acknowledged(number)
    with Ledger(path, "old", "new") as ledger:
        assert ledger.tally("/queue/a") == Tally(seen_count=5, moved_count=5, doubled_count=3)


def test_an_id_counts_only_while_the_target_remembers_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for at_seconds, standing in ((0, Standing.FRESH), (60, Standing.RESENT), (24 * 3600, Standing.AGAIN)):
        with Ledger(path, "old", "new", clock=lambda: at_seconds) as ledger:  # noqa: B023 - called at once
            assert ledger.begin([Arrival("/queue/a", "=1")])[1] == [standing]
    with Ledger(path, "old", "new") as ledger:
        tally = ledger.tally("/queue/a")
    assert tally == Tally(seen_count=1, resent_count=1, doubled_count=1, doubt=Counter({"=1": 1}))


def test_a_ledger_is_of_one_move_at_a_time_and_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path, "old", "new") as ledger:
        number, _standings = ledger.begin([Arrival("/queue/a", "=1")])
        ledger.moved(number)
        with pytest.raises(LedgerError, match="in use by another run"):
            Ledger(path, "old", "new")
    with path.open("ab") as file:
        file.write(b'{"batch":2,"queue":"/queue/a","fre')
    with pytest.raises(LedgerError, match="a move from old to new: name another file"):
        Ledger(path, "other", "new")
    with Ledger(path, "old", "new") as ledger:
        assert ledger.is_continued
        assert ledger.tally("/queue/a").landed == Counter({"=1": 1})
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(LedgerError, match="line 6, is damaged"):
        Ledger(path, "old", "new")
    other = tmp_path / "other"
    for content in ("[broker]\n", "no end of a line"):
        other.write_text(content)
        with pytest.raises(LedgerError, match="of no ledger"):
            Ledger(other, "old", "new")
        assert other.read_text() == content, "a file that is no ledger is left as it was"


def test_verdicts_follow_from_the_counts() -> None:
    def verdict(tally: Tally, **facts: Any) -> tuple[Verdict, str]:
        given = {"left_count": 0, "open_count": 0, "trouble": "", "idle_seconds": 3.0} | facts
        made = outcome("/queue/a", tally, **given)
        return made.verdict, made.why

    fine = Tally(seen_count=3, moved_count=3)
    assert verdict(fine) == (Verdict.COMPLETE, "all of it is here, and nothing is left there")
    assert verdict(fine, left_count=None) == (Verdict.UNVERIFIED, "nothing more came for 3 s")
    for facts in ({"left_count": 1}, {"open_count": 1}, {"trouble": "x"}):
        assert verdict(fine, **facts)[0] is Verdict.INCOMPLETE
    assert "were not redelivered" in verdict(Tally(seen_count=1, doubt=Counter({"=1": 1})))[1]


# ---------------------------------------------------------------------- the command


def run(old: str, new: EmbeddedBroker, path: Path, *options: str, broker: str = "activemq") -> Result:
    settings = ["--ledger", str(path / "ledger"), "--idle", str(IDLE_SECONDS)]
    url = ["--url", address(new).url]
    return CliRunner().invoke(main, ["migrate", broker, old, "--messages", *url, *settings, *options])


def test_the_command_moves_and_reports(old: EmbeddedBroker, new: EmbeddedBroker, tmp_path: Path) -> None:
    fill(old, "one", 7, persistent="true")
    fill(old, "two", 3)
    queues = ["--queue", "one", "--queue", "two"]
    dry = run(address(old).url, new, tmp_path, "--dry-run", *queues)
    assert dry.exit_code == 0, dry.output
    assert "one: 7 messages, to /queue/one" in dry.output
    assert not (tmp_path / "ledger").exists()
    result = run(address(old).url, new, tmp_path, *queues)
    assert result.exit_code == 0, result.output
    lines = [line.split()[:6] for line in result.stdout.splitlines() if line.startswith("/queue")]
    assert lines == [["/queue/one", "7", "7", "0", "0", "complete:"], ["/queue/two", "3", "3", "0", "0", "complete:"]]
    assert "keeps persistent messages in memory only" in result.stderr
    assert [frame.headers.get("persistent") for frame in drained(new, "one")] == ["true"] * 7


def test_all_queues_are_moved_at_once_where_the_other_broker_can(new: EmbeddedBroker, tmp_path: Path) -> None:
    with EmbeddedBroker() as old:
        fill(old, "x.one", 4)
        fill(old, "x.two", 2)
        result = run(address(old).url, new, tmp_path)
    assert result.exit_code == 0, result.output
    assert "/queue/x.one           4           4     unknown           0  unverified" in result.stdout
    assert "browsing is for one queue" in result.stderr
    assert (len(drained(new, "x.one")), len(drained(new, "x.two"))) == (4, 2)


def test_what_the_target_refuses_stays_at_the_source(old: EmbeddedBroker, new: EmbeddedBroker, tmp_path: Path) -> None:
    fill(old, "small", 8)
    result = run(address(old).url, new, tmp_path, "--queue", "small", "--prefetch", "5")
    assert result.exit_code == 5, result.output
    assert "refuses a message" in result.stdout
    assert "3 left there" in result.stdout
    assert len(drained(new, "small")) == 5
    again = run(address(old).url, new, tmp_path, "--queue", "small")
    assert again.exit_code == 0, again.output
    assert "continuing with" in again.stderr
    assert len(drained(new, "small")) == 3


def test_a_source_that_vanishes_is_named_with_what_to_do(new: EmbeddedBroker, tmp_path: Path) -> None:
    """It ends at the first ACK, as a broker does that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        thread = threading.Thread(target=_vanishing, args=(server,))
        thread.start()
        port = server.getsockname()[1]
        result = run(f"stomp://127.0.0.1:{port}", new, tmp_path, "--queue", "gone", broker="rabbitmq")
        thread.join()
    assert result.exit_code == 4, result.output
    assert "closed the connection" in result.stdout
    assert "run the command again to continue" in result.stdout
    assert "1           1     unknown           0  incomplete" in result.stdout
    assert len(drained(new, "gone")) == 1


def _vanishing(server: socket.socket) -> None:
    connection, _peer = server.accept()
    with connection:
        connection.settimeout(20)
        for wanted, answer in (
            (b"CONNECT", b"CONNECTED\nversion:1.2\nserver:RabbitMQ/3.10.8\n\n\0"),
            (b"SUBSCRIBE", b"MESSAGE\nsubscription:1\nmessage-id:1\nack:1\ndestination:/queue/gone\n\nx\0"),
            (b"ACK", b""),
        ):
            received = b""
            while wanted not in received:
                received += connection.recv(4096)
            connection.sendall(answer)


@pytest.mark.parametrize(
    ("source", "options", "code", "words"),
    [
        ("definitions.json", ["--queue", "a"], 2, "it is the STOMP address of the other broker"),
        ("stomp://127.0.0.1:1", [], 2, "no queue is named"),
        ("stomp://127.0.0.1:1", ["--output", "x"], 2, "leave it out with --messages"),
        ("stomp://127.0.0.1:1", ["--queue", "a"], 4, "no broker answers at stomp://127.0.0.1:1: when it is back"),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    new: EmbeddedBroker, tmp_path: Path, source: str, options: list[str], code: int, words: str
) -> None:
    result = run(source, new, tmp_path, *options, broker="rabbitmq")
    assert result.exit_code == code, result.output
    assert words in " ".join(result.output.split())


def test_a_login_that_the_source_refuses_is_named(new: EmbeddedBroker, tmp_path: Path) -> None:
    from sluiceway.security.secrets import hashed

    users = tmp_path / "users"
    users.write_text(f"web:{hashed('right', log_n=4, r=1, p=1)}\n")
    users.chmod(0o600)
    with EmbeddedBroker(security={"users_file": str(users)}) as old:
        result = run(f"stomp://web:wrong@{old.host}:{old.port}", new, tmp_path, "--queue", "a")
    assert result.exit_code == 5
    assert "refuses the login" in result.output
    assert "SLUICEWAY_SOURCE_PASSCODE" in result.output
