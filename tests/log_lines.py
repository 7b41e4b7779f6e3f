"""The lines that a broker logs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from sluiceway import logging_setup


class LogLines:
    """What was logged so far."""

    def __init__(self) -> None:
        self.text = io.StringIO()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.getvalue().splitlines()]

    def of(self, event: str) -> list[dict[str, Any]]:
        """The lines about this."""
        return [line for line in self.all() if line["event"] == event]


@pytest.fixture
def log_lines() -> Iterator[LogLines]:
    """The log of this test's broker."""
    lines = LogLines()
    logging_setup.configure("info", "json", lines.text)
    yield lines
    structlog.reset_defaults()
