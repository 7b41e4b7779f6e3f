"""Selectors in use: shared by text, and charged.

The size of a selector follows from its length, up to some hundreds of kilobytes. Consumers with the same text share one
selector, which is charged once, as long as one of them, or a durable subscription with that selector, exists.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import attrs

from ...flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from ...flow.kinds import ResourceKind
from ..steps import Waiting
from .grammar import is_prepared
from .selector import Selection, Selector, compiling


class SelectorLimitError(Exception):
    """Limit on the memory of all selectors reached. The message names the limit."""


@attrs.define(eq=False)
class _Entry:
    selector: Selector
    users_count: int = 0


class SelectorTable(FlowResource):
    """Selectors of a broker, and their place on the flow map."""

    passes_through = False

    def __init__(self, bytes_max: int, *, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__("selectors", ResourceKind.SUBSCRIPTIONS, manager)
        self.bytes_max = bytes_max
        self.prepare: Callable[[Callable[[], None]], None] | None = None
        """Makes the parsers elsewhere, then calls its argument. None: the first selector makes them."""
        self._entries: dict[str, _Entry] = {}
        self._limiter = SizeLimiter(bytes_max, clock=clock, label="selectors")
        self._controller = Account(self, Flow("selectors in use"), self._limiter, clock=clock)
        self.open()

    @property
    def used_bytes(self) -> int:
        return self._limiter.used_bytes

    def resize(self, bytes_max: int) -> None:
        """Set another limit. Selectors in use stay."""
        self.bytes_max = bytes_max
        self._limiter.resize(bytes_max)

    def taking(self, text: str, *, message_token: str) -> Generator[Waiting | None, None, Selection | None]:
        """Return a selection by the text, compiled in steps of a line; None: it selects all. The selection must be
        closed. Raises SelectorError, SelectorLimitError.
        """
        if text not in self._entries:
            if self.prepare is not None and not is_prepared():
                yield Waiting(self.prepare)
            selector = yield from compiling(text, message_token=message_token)
            if selector is None:
                return None
            if text not in self._entries:  # no other consumer has made it meanwhile
                if self.used_bytes + selector.size_bytes > self.bytes_max:
                    raise SelectorLimitError(
                        f"the selectors in use take {self.used_bytes} bytes, and this one would take "
                        f"{selector.size_bytes} more than the {self.bytes_max} allow (selectors_bytes_max of [broker])"
                    )
                self._entries[text] = _Entry(selector)
                self._controller.charge(1, selector.size_bytes, None)
        return self.share(text)

    def share(self, text: str) -> Selection:
        """Return one more selection by a selector in use."""
        entry = self._entries[text]
        entry.users_count += 1

        def release() -> None:
            entry.users_count -= 1
            if not entry.users_count:
                del self._entries[text]
                self._controller.release(1, entry.selector.size_bytes)

        return Selection(entry.selector, release, lambda: self.share(text))

    def facts(self) -> Mapping[str, object]:
        return {"selectors": len(self._entries), "used_bytes": self.used_bytes}
