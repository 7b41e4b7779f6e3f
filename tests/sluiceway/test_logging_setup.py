"""What logs look like, and what never gets into them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from sluiceway import logging_setup


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_lines_have_level_and_utc_time() -> None:
    out = io.StringIO()
    logging_setup.configure("info", "auto", out)
    structlog.get_logger().info("listening", address="127.0.0.1:61613")
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["address"]) == ("listening", "info", "127.0.0.1:61613")
    assert line["timestamp"].endswith("Z")


def test_a_terminal_gets_columns() -> None:
    out = Terminal()
    logging_setup.configure("info", "auto", out)
    structlog.get_logger().info("listening")
    assert "listening" in out.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(out.getvalue())


def test_what_is_below_the_level_is_not_logged() -> None:
    out = io.StringIO()
    logging_setup.configure("warning", "json", out)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["loud"]


@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_are_hidden(format: str) -> None:
    """As a value, and inside the headers of a frame."""
    out = io.StringIO()
    logging_setup.configure("info", format, out)
    structlog.get_logger().info("connect", passcode="hunter2", headers={"login": "web", "passcode": "hunter2"})
    assert "hunter2" not in out.getvalue()
    assert "web" in out.getvalue()


def test_an_exception_keeps_its_traceback_in_json() -> None:
    out = io.StringIO()
    logging_setup.configure("info", "json", out)
    try:
        raise LookupError("gone")
    except LookupError:
        structlog.get_logger().exception("failed")
    assert "LookupError: gone" in json.loads(out.getvalue())["exception"]


def test_unknown_levels_and_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        logging_setup.configure("loud")
    with pytest.raises(ValueError, match="auto, json or console"):
        logging_setup.configure("info", "xml")
