"""Limits of attachments of consumers to queues, each of which takes memory even if nothing is sent.

A SUBSCRIBE with a wildcard makes one for each destination that it matches, and each new destination one for each
wildcard that matches it; a queue with several priorities in use counts for each of them. The account of a connection
and the pool of the broker count them alike. A SUBSCRIBE that would exceed either limit is refused. Attachments made
later, by new destinations and new priorities, are not refused, since their senders did nothing wrong: the connection
that exceeds its limit is closed. The pool has further room for these attachments (GROWTH_SHARE), so that a broker that
is full of the subscriptions of some clients still serves the wildcards of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..flow import Account, Flow, FlowManager, FlowResource, WindowLimiter
from ..flow.kinds import ResourceKind

ATTACHMENT_BYTES: Final = 3072
"""Memory of one attachment in bytes: 2,900 for a topic, 1,900 for a queue (tracemalloc, CPython 3.11), rounded up for
its share of tables.
"""

GROWTH_SHARE: Final = 4
"""Divisor of `attachments_max`: this part comes on top for attachments made by new destinations."""


class AttachmentLimitError(Exception):
    """Error of a SUBSCRIBE that needs more attachments than are allowed. The message names the limit and what to do."""


class AttachmentPool(FlowResource):
    """Pool of all attachments of a broker, and its place on the flow map."""

    passes_through = False

    def __init__(self, count_max: int, *, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__("attachments", ResourceKind.SUBSCRIPTIONS, manager)
        self.count_max = count_max
        self._controller = Account(
            self,
            Flow("attachments of subscriptions to queues"),
            WindowLimiter(count_max, None, clock=clock, label="attachments"),
            clock=clock,
        )
        self.open()

    @property
    def used_count(self) -> int:
        return self._controller.limiter.used_count

    @property
    def used_bytes(self) -> int:
        return self._controller.limiter.used_bytes

    def resize(self, count_max: int) -> None:
        """Set another limit. Existing attachments stay."""
        self.count_max = count_max
        limiter = self._controller.limiter
        assert isinstance(limiter, WindowLimiter)
        limiter.resize(count_max, None)

    def changed(self, count: int) -> None:
        """Count `count` attachments more, or fewer if negative."""
        if count > 0:
            self._controller.charge(count, count * ATTACHMENT_BYTES, None)
        elif count < 0:
            self._controller.release(-count, -count * ATTACHMENT_BYTES)

    def facts(self) -> Mapping[str, object]:
        return {"attachments": self.used_count, "attachments_max": self.count_max}


class AttachmentAccount:
    """Account of the attachments of one connection."""

    __slots__ = ("_overdrawn", "_pool", "count", "count_max")

    def __init__(
        self, pool: AttachmentPool, count_max: int | None = None, overdrawn: Callable[[str], None] | None = None
    ) -> None:
        """`count_max` None: only the pool is a limit. `overdrawn` is told why when new destinations have made too many
        of them, in the midst of anything: it must not detach anything at once.
        """
        self._pool = pool
        self._overdrawn = overdrawn
        self.count_max = count_max
        self.count = 0

    def check(self, count: int = 1) -> None:
        """Check that there is room for `count` more attachments. Raises AttachmentLimitError if not."""
        if self.count_max is not None and self.count + count > self.count_max:
            raise AttachmentLimitError(self._too_many())
        if self._pool.used_count + count > self._pool.count_max:
            raise AttachmentLimitError(
                f"the broker has {self._pool.used_count} attachments of subscriptions to queues, and takes no more "
                f"than {self._pool.count_max} (attachments_max of [broker])"
            )

    def changed(self, count: int) -> None:
        """Count `count` attachments more, or fewer if negative; calls `overdrawn` with a message if a limit is
        exceeded.
        """
        self.count += count
        self._pool.changed(count)
        if count > 0 and self._overdrawn is not None:
            if self.count_max is not None and self.count > self.count_max:
                self._overdrawn(self._too_many())
            elif self._pool.used_count > self._pool.count_max + self._pool.count_max // GROWTH_SHARE:
                self._overdrawn(
                    f"new destinations gave the broker {self._pool.used_count} attachments of subscriptions to queues, "
                    f"far more than attachments_max of [broker], which is {self._pool.count_max}"
                )

    def _too_many(self) -> str:
        return (
            f"the connection would have more than {self.count_max} attachments to queues (attachments_max of the "
            "listener): one for each destination that a SUBSCRIBE matches"
        )
