"""A selector that is ready for use, and what one subscription has made of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from queues.message import Envelope, Message
from queues.selectors.compiling import Compiled, compile_tree
from queues.selectors.errors import SelectorError
from queues.selectors.grammar import parse

SELECTOR_CHARS_MAX: Final = 4096
"""A longer one is refused."""

SELECTOR_WORDS_MAX: Final = 1000
"""Words and signs. Reading so many takes some 20 milliseconds, in which nothing else goes on."""

COMPILED_COUNT_MAX: Final = 128
"""Selectors that are kept ready: consumers of one kind come with the same one."""

HEADS_COUNT_MAX: Final = 16
"""Heads of which a selector remembers whether it takes them."""

_PREFIXES: Final = ("convert_string_expressions:", "hyphenated_props:")
"""Of ActiveMQ and Artemis. The first changes nothing here: texts are numbers where numbers are compared."""

_WORD: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[\w$.]+|[^\s\w]")


class Selector:
    """Which messages to take. Made by `compile_selector`; may be shared."""

    __slots__ = ("_compiled", "_known", "by_message", "text")

    def __init__(self, text: str, compiled: Compiled) -> None:
        self.text = text
        self.by_message = compiled.by_message
        """It looks at each message, not only at its head."""
        self._compiled = compiled
        self._known: dict[Envelope, bool] = {}

    def takes(self, message: Message) -> bool:
        """Whether this one is wanted. O(1) if the head was met lately, else O(length of the selector)."""
        if self.by_message:
            return self._compiled.test_message(message)
        known = self._known.get(message.head)
        return self._judge(message.head) if known is None else known

    def places(self, messages: Sequence[Message]) -> list[int]:
        """Which of these are wanted, by place. O(n)."""
        if self.by_message:
            test = self._compiled.test_message
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

    def _judge(self, head: Envelope) -> bool:
        takes = self._compiled.test_head(head)
        if len(self._known) >= HEADS_COUNT_MAX:
            self._known.clear()
        self._known[head] = takes
        return takes

    def __repr__(self) -> str:
        return f"<Selector {self.text[:80]!r}>"


class Selection:
    """What one consumer selects by, in all queues that it takes from, and how much it has passed over."""

    __slots__ = ("passed_count", "selector")

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.passed_count = 0
        """Messages that it has looked at and not taken. One that comes back and is looked at again counts again."""

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.passed_count:,} passed over"


def compile_selector(text: str, *, message_token: str = "") -> Selector | None:
    """Make a selector of its text; None if that is blank, which takes all. `message_token`: how the message-ids of this
    broker begin. Raises SelectorError.
    """
    if not text.strip():
        return None
    if len(text) > SELECTOR_CHARS_MAX:
        said = f"the selector has {len(text)} characters: at most {SELECTOR_CHARS_MAX} are allowed"
        raise _too_long(said, text, SELECTOR_CHARS_MAX)
    if len(text) > SELECTOR_WORDS_MAX:
        beyond = next(islice(_WORD.finditer(text), SELECTOR_WORDS_MAX, None), None)
        if beyond is not None:
            said = f"the selector has more than {SELECTOR_WORDS_MAX} words and signs: split what it asks for"
            raise _too_long(said, text, beyond.start())
    return _compiled(text, message_token)


def _too_long(said: str, text: str, place: int) -> SelectorError:
    return SelectorError(said, text, text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place))


@lru_cache(maxsize=COMPILED_COUNT_MAX)
def _compiled(text: str, message_token: str) -> Selector:
    hyphens, length = False, 0
    while prefix := next((prefix for prefix in _PREFIXES if text.startswith(prefix, length)), None):
        hyphens = hyphens or prefix == "hyphenated_props:"
        length += len(prefix)
    tree = parse(text, start=length, hyphens=hyphens)
    return Selector(text, compile_tree(tree, text, message_token))
