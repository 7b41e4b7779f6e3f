"""A compiled selector, and its use by one subscription."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from ..message import Envelope, Message
from .compiling import Compiled, compile_tree
from .errors import SelectorError
from .grammar import parsing

SELECTOR_CHARS_MAX: Final = 4096
"""Maximum length of a selector."""

SELECTOR_WORDS_MAX: Final = 1000
"""Maximum number of words and signs. Parsing 1000 takes some 20 milliseconds, in steps."""

UNITS_PER_COST: Final = 8
"""Units of a selector's cost that count like one delivered message in a dispatch's budget."""

LOOK_COUNT_MIN: Final = 16
"""Messages that a consumer with little credit tests together, at first."""

LOOKS_PER_COST: Final = 4
"""Tested messages that cost as much of a dispatch's budget as one delivered message."""

LOOK_COST: Final = 10
"""Units of cost of an evaluation, for every selector."""

LOOK_UNITS_MAX: Final = 4000
"""Units of cost per step: a millisecond."""

PART_BYTES: Final = 250
CHAR_BYTES: Final = 16
"""Maximum size per unit of cost, and per character of the text: measured."""

HEADS_COUNT_MAX: Final = 16
"""Heads whose result a selector caches."""

_PREFIXES: Final = ("convert_string_expressions:", "hyphenated_props:")
"""Prefixes of ActiveMQ and Artemis. The first has no effect here: texts are compared with numbers as numbers."""

_WORD: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[\w$.]+|[^\s\w]")


class Selector:
    """A condition on messages. Made by `compile_selector`; may be shared."""

    __slots__ = (
        "__weakref__",
        "_compiled",
        "_known",
        "_look_cost",
        "by_message",
        "looks_max",
        "size_bytes",
        "spent_units",
        "text",
    )

    def __init__(self, text: str, compiled: Compiled) -> None:
        self.text = text
        self.by_message = compiled.by_message
        """Whether each message is tested, not only its head."""
        self._look_cost = compiled.cost + LOOK_COST
        self.looks_max = max(1, LOOK_UNITS_MAX // self._look_cost)
        """Messages that may be tested in one step, if each has a head of its own."""
        self.spent_units = 0
        """Total cost of all tests, see Compiled.cost. Callers charge the difference to their budgets."""
        self.size_bytes = PART_BYTES * compiled.cost + CHAR_BYTES * len(text)
        """Approximate size."""
        self._compiled = compiled
        self._known: dict[Envelope, bool] = {}

    def takes(self, message: Message) -> bool:
        """Return whether the message is selected. O(1) if the head was tested recently, else O(length of the
        selector).
        """
        if self.by_message:
            self.spent_units += self._look_cost
            return self._compiled.test_message(message)
        known = self._known.get(message.head)
        return self._judge(message.head) if known is None else known

    def places(self, messages: Sequence[Message]) -> list[int]:
        """Return the places of the selected messages. O(n)."""
        if self.by_message:
            test = self._compiled.test_message
            self.spent_units += self._look_cost * len(messages)
            return [place for place, message in enumerate(messages) if test(message)]
        found: list[int] = []
        known = self._known
        last: Envelope | None = None
        takes: bool | None = False
        for place, message in enumerate(messages):
            head = message.head
            if head is not last:
                last = head
                takes = known.get(head)
                if takes is None:
                    takes = self._judge(head)
            if takes:
                found.append(place)
        return found

    def cost_since(self, before_units: int) -> int:
        """Return the cost since `spent_units` had the given value, in units of a dispatch's budget."""
        return (self.spent_units - before_units) // UNITS_PER_COST

    def _judge(self, head: Envelope) -> bool:
        takes = self._compiled.test_head(head)
        self.spent_units += self._look_cost
        if len(self._known) >= HEADS_COUNT_MAX:
            self._known.clear()
        self._known[head] = takes
        return takes

    def __repr__(self) -> str:
        return f"<Selector {self.text[:80]!r}>"


class Selection:
    """Selector of one consumer, for all its queues, and the number of messages it has passed over."""

    __slots__ = ("_release", "_share", "passed_count", "selector")

    def __init__(
        self,
        selector: Selector,
        release: Callable[[], None] | None = None,
        share: Callable[[], Selection] | None = None,
    ) -> None:
        """Take `release`, called when this selection is no longer needed, and `share`, called when another consumer
        selects by the same.
        """
        self.selector = selector
        self._release = release
        self._share = share
        self.passed_count = 0
        """Messages tested and not selected. A requeued message that is tested again counts again."""

    @property
    def words(self) -> str:
        """Text for statistics."""
        return f"{self.passed_count:,} skipped"

    def again(self) -> Selection:
        """Return a selection by the same selector for another consumer."""
        return Selection(self.selector) if self._share is None else self._share()

    def close(self) -> None:
        """Release the selector. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()


def compile_selector(text: str, *, message_token: str = "") -> Selector | None:
    """Compile a selector at once; see `compiling`."""
    steps = compiling(text, message_token=message_token)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Selector | None = end.value
            return made


def compiling(text: str, *, message_token: str = "") -> Generator[None, None, Selector | None]:
    """Compile a selector in steps; return None for a blank text, which selects all messages. A selector in use is
    shared. `message_token`: the beginning of this broker's message-ids. Raises SelectorError.
    """
    if not text.strip():
        return None
    if len(text) > SELECTOR_CHARS_MAX:
        said = f"the selector has {len(text)} characters: at most {SELECTOR_CHARS_MAX} are allowed"
        raise _too_long(said, text, SELECTOR_CHARS_MAX)
    if len(text) > SELECTOR_WORDS_MAX:
        beyond = next(islice(_WORD.finditer(text), SELECTOR_WORDS_MAX, None), None)
        if beyond is not None:
            said = f"the selector has more than {SELECTOR_WORDS_MAX} words and signs: split it"
            raise _too_long(said, text, beyond.start())
    made = _in_use.get((text, message_token))
    if made is None:
        hyphens, length = False, 0
        while prefix := next((prefix for prefix in _PREFIXES if text.startswith(prefix, length)), None):
            hyphens = hyphens or prefix == "hyphenated_props:"
            length += len(prefix)
        tree = yield from parsing(text, start=length, hyphens=hyphens)
        made = _in_use.setdefault((text, message_token), Selector(text, compile_tree(tree, text, message_token)))
    return made


def _too_long(said: str, text: str, place: int) -> SelectorError:
    return SelectorError(said, text, text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place))


_in_use: Final[WeakValueDictionary[tuple[str, str], Selector]] = WeakValueDictionary()
"""Selectors in use, shared by consumers with the same text."""
