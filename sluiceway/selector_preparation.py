"""Preparation of selectors in another thread, so that deliveries do not wait for it.

The first selector would block the loop for more than a tenth of a second: most of that is an import. A broker of
`sluiceway serve` prepares when it serves, one inside a program with the first SUBSCRIBE that has a selector: most tests
have none. That SUBSCRIBE waits for the preparation, and so do the frames behind it on its connection (queues/steps.py).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

from sluiceway.dispatcher import DispatcherClosedError
from sluiceway.queues.selectors.grammar import is_prepared, prepare

SWITCH_SECONDS: Final = 0.0005
"""Time for which the thread may keep the interpreter from the loop, where the process runs only the broker; else
Python's interval of 5 ms.
"""


class SelectorPreparation:
    """Preparation for one broker."""

    def __init__(self, submit: Callable[[Callable[[], None]], None], *, gives_way: bool) -> None:
        """`submit`: run this on the loop, from any thread; `gives_way`: this process is all broker."""
        self._submit = submit
        self._gives_way = gives_way
        self._waiting: list[Callable[[], None]] = []
        self._is_under_way = False

    def begin(self) -> None:
        """Begin the preparation, unless it has begun. Returns at once."""
        if not is_prepared() and not self._is_under_way:
            self._is_under_way = True
            threading.Thread(target=self._make, name="selectors", daemon=True).start()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call back when the preparation is done, or has failed: then the first user finds the reason."""
        self._waiting.append(resume)
        self.begin()
        if not self._is_under_way:
            self._made()

    def _make(self) -> None:
        interval_seconds = sys.getswitchinterval()
        if self._gives_way:
            sys.setswitchinterval(SWITCH_SECONDS)
        try:
            prepare()
        finally:
            if self._gives_way:
                sys.setswitchinterval(interval_seconds)
            try:
                self._submit(self._made)
            except DispatcherClosedError:
                pass  # the broker has stopped meanwhile: no caller waits

    def _made(self) -> None:
        self._is_under_way = False
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()
