"""Selectors: conditions on messages, in the SQL-92 subset that the dialects of STOMP and JMS share.

Text goes through a grammar (grammar.py) and is compiled once into closures over the headers that it names
(compiling.py). A value that is unknown, like a missing header, stays unknown through AND, OR and NOT; only a true
result selects. Length, nesting and patterns are bounded, and no part can backtrack. Each selector knows the cost of an
evaluation (`Selector.looks_max`, `spent_units`), so that callers evaluate it in steps of a millisecond.

Not here: skipping of messages that are not selected (selector_scan.py, skipping.py, logs/log_readers.py, browsing.py).

Source: JMS 1.1 section 3.8; ActiveMQ's and Artemis' additions as far as docs/selectors.md says.
"""

from __future__ import annotations

from .errors import SelectorError
from .selector import (
    SELECTOR_CHARS_MAX,
    UNITS_PER_COST,
    Selection,
    Selector,
    compile_selector,
    compiling,
)

__all__ = [
    "SELECTOR_CHARS_MAX",
    "UNITS_PER_COST",
    "Selection",
    "Selector",
    "SelectorError",
    "compile_selector",
    "compiling",
]
