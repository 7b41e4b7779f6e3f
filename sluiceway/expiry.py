"""Warnings of certificates that end: two weeks before, and each day from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from sluiceway.protocols.log import get_logger

WARNING_SECONDS: Final = 14 * 86_400.0
CHECK_SECONDS: Final = 86_400.0

Certificates = Callable[[], Sequence[tuple[str, float]]]
"""The name of each listener with TLS, and when its certificate ends, in seconds since the epoch."""

log = get_logger("sluiceway.listener")


class ExpiryWatch:
    """Warnings of one broker."""

    def __init__(
        self, certificates: Certificates, now_ms: Callable[[], int], contain: Callable[[Exception], None]
    ) -> None:
        """Prepare the warnings. `contain` is given exceptions of a daily check; the next check comes all the same."""
        self._certificates = certificates
        self._now_ms = now_ms
        self._contain = contain
        self._watches = False

    def look(self, nursery: trio.Nursery) -> None:
        """Check the certificates now, and from now on once a day, if there are any."""
        self._warn()
        if self._certificates() and not self._watches:
            self._watches = True
            nursery.start_soon(self._watch)

    async def _watch(self) -> None:
        while True:
            await trio.sleep(CHECK_SECONDS)
            try:
                self._warn()
            except Exception as error:  # noqa: BLE001 - the shell of one look
                self._contain(error)

    def _warn(self) -> None:
        for label, not_after in self._certificates():
            left_seconds = not_after - self._now_ms() / 1000
            if left_seconds <= 0:
                log.error(
                    "the certificate has expired",
                    listener=label,
                    days_ago=round(-left_seconds / 86_400, 1),
                    remedy="put a new one in its place, and send SIGHUP",
                )
            elif left_seconds < WARNING_SECONDS:
                log.warning(
                    "the certificate expires soon",
                    listener=label,
                    days=round(left_seconds / 86_400, 1),
                    remedy="put a new one in its place, and send SIGHUP",
                )
