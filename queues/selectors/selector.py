"""A selector that is ready for use, and what one subscription has made of it."""

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
"""A longer one is refused."""

SELECTOR_WORDS_MAX: Final = 1000
"""Words and signs. Reading so many takes some 20 milliseconds, in steps."""

UNITS_PER_COST: Final = 8
"""Of a dispatch's budget: so many units of a selector's cost take as long as a message that is handed over."""

LOOK_COST: Final = 10
"""Units of cost for a look at a message, whatever the selector asks."""

LOOK_UNITS_MAX: Final = 4000
"""A step looks at as many messages as cost so much together: a millisecond."""

PART_BYTES: Final = 250
CHAR_BYTES: Final = 16
"""What a unit of cost, and a character of the text, take at most: measured."""

HEADS_COUNT_MAX: Final = 16
"""Heads of which a selector remembers whether it takes them."""

_PREFIXES: Final = ("convert_string_expressions:", "hyphenated_props:")
"""Of ActiveMQ and Artemis. The first changes nothing here: texts are numbers where numbers are compared."""

_WORD: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[\w$.]+|[^\s\w]")


class Selector:
    """Which messages to take. Made by `compile_selector`; may be shared."""

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
        """It looks at each message, not only at its head."""
        self._look_cost = compiled.cost + LOOK_COST
        self.looks_max = max(1, LOOK_UNITS_MAX // self._look_cost)
        """Messages of which it may be asked in one step, if each has a head of its own."""
        self.spent_units = 0
        """What all that it was asked has cost, see Compiled.cost. Whoever asks charges the difference to its budget."""
        self.size_bytes = PART_BYTES * compiled.cost + CHAR_BYTES * len(text)
        """About what it takes."""
        self._compiled = compiled
        self._known: dict[Envelope, bool] = {}

    def takes(self, message: Message) -> bool:
        """Whether this one is wanted. O(1) if the head was met lately, else O(length of the selector)."""
        if self.by_message:
            self.spent_units += self._look_cost
            return self._compiled.test_message(message)
        known = self._known.get(message.head)
        return self._judge(message.head) if known is None else known

    def places(self, messages: Sequence[Message]) -> list[int]:
        """Which of these are wanted, by place. O(n)."""
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
        """What it was asked since `spent_units` was that, as a cost in a dispatch's budget."""
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
    """What one consumer selects by, in all queues that it takes from, and how much it has passed over."""

    __slots__ = ("_release", "_share", "passed_count", "selector")

    def __init__(
        self,
        selector: Selector,
        release: Callable[[], None] | None = None,
        share: Callable[[], Selection] | None = None,
    ) -> None:
        """Whoever counts selectors is told when this is needed no more (`release`), and when somebody else selects by
        the same (`share`).
        """
        self.selector = selector
        self._release = release
        self._share = share
        self.passed_count = 0
        """Messages that it has looked at and not taken. One that comes back and is looked at again counts again."""

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.passed_count:,} passed over"

    def again(self) -> Selection:
        """The same for somebody else."""
        return Selection(self.selector) if self._share is None else self._share()

    def close(self) -> None:
        """It is needed no more. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()


def compile_selector(text: str, *, message_token: str = "") -> Selector | None:
    """Make a selector of its text, at once; see `compiling`."""
    steps = compiling(text, message_token=message_token)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Selector | None = end.value
            return made


def compiling(text: str, *, message_token: str = "") -> Generator[None, None, Selector | None]:
    """Make a selector of its text, in steps; None if that is blank, which takes all. One that is in use is shared.
    `message_token`: how the message-ids of this broker begin. Raises SelectorError.
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
"""Consumers of one kind come with the same one."""
