"""The parts that an owner has open: closed in good order or abandoned, the last one opened first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import trio

Close = Callable[[], Awaitable[None] | None]
Abandon = Callable[[], None]


class OpenParts:
    """A stack with two ways down, where `contextlib.AsyncExitStack` has one."""

    def __init__(self) -> None:
        self._parts: list[tuple[Close, Abandon]] = []
        self._closing = trio.Lock()

    def opened(self, close: Close, *, abandon: Abandon | None = None) -> None:
        """Put a part on top. `close` ends the part cleanly. `abandon` releases files, ports and threads at once, also
        of a part whose `close` has failed; None: a part that has none.
        """
        self._parts.append((close, abandon or _nothing))

    async def close(self) -> None:
        """Close every part. Raises the exception of the first failing part; that part and those below it stay open for
        `abandon`. A second call waits for the first, and continues after a cancelled one.
        """
        async with self._closing:
            while self._parts:
                part = self._parts[-1]
                waiting = part[0]()
                if waiting is not None:
                    await waiting
                if part in self._parts:  # not abandoned meanwhile
                    self._parts.remove(part)

    def abandon(self) -> None:
        """Abandon every part that is still open. An exception of one part is raised when all of them are abandoned."""
        with ExitStack() as abandoned:
            for _close, abandon in self._parts:
                abandoned.callback(abandon)
            self._parts.clear()


def _nothing() -> None:
    return None
