"""`sluiceway trail`: against a real broker, and the drawing of answers that lack what we know or hold what we don't."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sluiceway import EmbeddedBroker
from sluiceway.cli import main
from sluiceway.cli.trail_view import draw_trails

KEYS = (
    "message_id", "correlation_id", "words", "complete", "omitted_count", "entries", "at_ms", "what", "where", "detail",
)  # fmt: skip


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    return CliRunner(env={"SLUICEWAY_URL": broker.url}).invoke(main, list(arguments))


def drawn(*trails: Mapping[str, Any]) -> str:
    out = io.StringIO()
    draw_trails(trails, Console(file=out, width=160))
    return out.getvalue()


@pytest.mark.interop
def test_a_message_is_followed_from_its_sender_to_its_end(broker: EmbeddedBroker) -> None:
    assert run(broker, "send", "/queue/a", "x", "--header", "correlation-id:order-77").exit_code == 0
    result = run(broker, "trail", "--correlation-id", "order-77")
    assert result.exit_code == 0, result.output
    assert "It is in /queue/a, in memory; it waits for a consumer, the first one." in result.stdout
    assert run(broker, "receive", "/queue/a", "--count", "1").exit_code == 0
    lines = run(broker, "trail", "--correlation-id", "order-77", "--json").stdout.splitlines()
    answer = json.loads(next(line for line in lines if line.startswith('{"ok"')))  # the broker logs there, too
    (trail,) = answer["trails"]
    assert [entry["what"] for entry in trail["entries"]] == ["accepted", "sent", "acked"]
    by_id = run(broker, "trail", trail["message_id"])
    assert by_id.exit_code == 0
    assert "correlation-id order-77" in by_id.stdout and "acked" in by_id.stdout


@pytest.mark.interop
@pytest.mark.parametrize(
    ("arguments", "code", "about"),
    [
        (("--correlation-id", "never"), 1, "no trail of correlation-id never"),
        (("nonsense",), 5, "no message-id of this broker"),
        (("abc-1",), 5, "another broker"),
        ((), 2, "one of them"),
        (("abc-1", "--correlation-id", "x"), 2, "one of them"),
        (("--correlation-id", "x", "--limit", "0"), 2, "limit"),
    ],
)
def test_what_can_not_be_answered_says_why(
    broker: EmbeddedBroker, arguments: tuple[str, ...], code: int, about: str
) -> None:
    result = run(broker, "trail", *arguments)
    assert result.exit_code == code
    assert about in result.stderr


def test_nobody_there_is_said_with_the_address() -> None:
    result = CliRunner().invoke(main, ["trail", "a-1", "--url", "stomp://127.0.0.1:1"])
    assert result.exit_code == 4
    assert "127.0.0.1:1" in result.stderr


def test_a_time_line_has_times_from_the_first_event_on() -> None:
    text = drawn(
        {
            "message_id": "a-1",
            "words": "It was acknowledged by b.",
            "complete": False,
            "omitted_count": 1200,
            "entries": [
                {"at_ms": 1_700_000_000_123, "what": "accepted", "where": "/queue/a", "detail": "from p"},
                {"at_ms": 1_700_000_000_143, "what": "paged_out", "where": "/queue/a", "detail": ""},
                {"at_ms": 1_700_000_041_123, "what": "acked", "where": "/queue/a", "detail": "by b"},
            ],
        }
    )
    lines = [line.split() for line in text.splitlines()]
    assert lines[3] == ["2023-11-14", "22:13:20.123Z", "accepted", "/queue/a", "from", "p"]
    assert lines[4][2:6] == ["+20", "ms", "paged", "out"]
    assert lines[5][2:5] == ["+41.0", "s", "acked"]
    assert "what happened before is forgotten" in text and "1,200 entries are left out" in text


def test_names_that_clients_chose_do_not_steer_the_terminal() -> None:
    """Nor do they colour it: markup is text."""
    nasty = "[red]\x1b[2J\x07\nx[/]"
    text = drawn(
        {"message_id": nasty, "correlation_id": nasty, "words": nasty, "entries": [{"where": nasty, "detail": nasty}]}
    )
    assert "\x1b" not in text and "\x07" not in text
    assert text.count("[red]\\x1b[2J\\x07\\x0ax[/]") >= 4


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_whatever_a_broker_answers_is_drawn(trail: dict[str, Any]) -> None:
    """It may be of another version."""
    drawn(trail)
