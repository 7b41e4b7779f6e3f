"""`sluiceway browse` against a broker that does what it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping

from click.testing import CliRunner, Result

from sluiceway.cli import main
from tests.sluiceway.scripted_broker import Answer, ScriptedBroker, frame


def run(broker: ScriptedBroker, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["browse", *arguments, "--url", broker.url])


def show(*bodies: bytes, end: bool = True) -> Answer:
    """These messages, and the end marker."""

    def answer(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        if command != "SUBSCRIBE":
            return None
        common = {"subscription": headers["id"], "destination": headers["destination"]}
        frames = [
            frame("MESSAGE", {**common, "message-id": str(number), "ack": f"a{number}"}, content)
            for number, content in enumerate(bodies)
        ]
        if end:
            frames.append(frame("MESSAGE", {**common, "message-id": "e", "ack": "e", "browser": "end"}))
        return b"".join(frames)

    return answer


def test_it_prints_all_up_to_the_end_and_acknowledges_nothing() -> None:
    """A broker that knows no browsing keeps its messages, too."""
    with ScriptedBroker(show(b"one", b"two")) as broker:
        result = run(broker, "/queue/a", "-H", "kind:x")
    assert result.exit_code == 0, result.output
    assert result.stdout == "one\ntwo\n"
    assert not broker.received("ACK")
    [(headers, _body)] = broker.received("SUBSCRIBE")
    assert (headers["browser"], headers["ack"], headers["kind"]) == ("true", "client-individual", "x")
    assert len(broker.received("DISCONNECT")) == 1


def test_an_empty_queue_prints_nothing() -> None:
    with ScriptedBroker(show()) as broker:
        result = run(broker, "/queue/a")
    assert (result.exit_code, result.output) == (0, "")


def test_count_ends_it_early_and_may_be_more_than_there_is() -> None:
    with ScriptedBroker(show(b"one", b"two", b"three")) as broker:
        assert run(broker, "/queue/a", "--count", "2").stdout == "one\ntwo\n"
        result = run(broker, "/queue/a", "--count", "10")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\nthree\n")


def test_it_prints_headers_and_json() -> None:
    with ScriptedBroker(show(b"one")) as broker:
        assert "message-id: 0\n" in run(broker, "/queue/a", "--headers").stdout
        assert json.loads(run(broker, "/queue/a", "--format", "json").stdout)["body"] == "one"


def test_a_broker_that_never_comes_to_an_end_is_given_up() -> None:
    with ScriptedBroker(show(b"one", end=False)) as broker:
        result = run(broker, "/queue/a", "--timeout", "0.05")
    assert result.exit_code == 1
    assert result.stdout == "one\n"
    assert "1 messages came, then neither another nor the end" in result.stderr


def test_a_refusal_ends_with_5() -> None:
    def refuse(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        return frame("ERROR", {"message": "'/topic/t' is a topic"}) if command == "SUBSCRIBE" else None

    with ScriptedBroker(refuse) as broker:
        result = run(broker, "/topic/t")
    assert result.exit_code == 5
    assert "'/topic/t' is a topic" in result.stderr


def test_a_selector_goes_to_the_broker() -> None:
    with ScriptedBroker(show()) as broker:
        assert run(broker, "/queue/a", "--selector", "size > 3").exit_code == 0
    [(headers, _body)] = broker.received("SUBSCRIBE")
    assert headers["selector"] == "size > 3"
