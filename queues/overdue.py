"""Elements of a topic that are past their date, and that some reader holds, or has refused and not given up yet.

Such an element is *overdue*. It leaves when its last holder lets go of it: it is looked at again whenever a reader
settles it, gives it back or leaves. A look asks all readers, so it is done soon after, in portions, and once for all
readers that let go together.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .environment import QueueEnvironment, TimerHandle
from .queue import MessageQueue


class Overdue:
    """The overdue elements of one topic.

    Attributes:
        sequences: all of them. Plain, because the hot path reads it.
    """

    __slots__ = ("_all_let_go", "_environment", "_let_go", "_queue", "_timer", "sequences")

    def __init__(self, queue: MessageQueue, environment: QueueEnvironment) -> None:
        self._queue = queue
        self._environment = environment
        self.sequences: set[int] = set()
        self._let_go: set[int] = set()
        """Those that a reader has let go, and that are to be looked at."""
        self._all_let_go = False
        self._timer: TimerHandle | None = None

    def let_go(self, sequences: SequenceOf[int]) -> None:
        """Look soon at what is overdue of these, which a reader has let go. O(sequences)."""
        self._let_go.update(self.sequences.intersection(sequences))
        self._arm()

    def let_all_go(self) -> None:
        """Look soon at all that is overdue: a reader is gone."""
        if self.sequences:
            self._all_let_go = True
            self._arm()

    def requeued(self, sequences: SequenceOf[int]) -> None:
        """Expire what is past its date of these, which a reader has just given back."""
        queue = self._queue
        if queue.expiry.is_needed:
            now_ms, elements = self._environment.now_ms(), queue.elements
            get = elements.get
            queue.expire(sorted([s for s in sequences if (m := get(s)) is not None and 0 < m.expires_at_ms <= now_ms]))
            if self.sequences:  # what the topic has dropped since has no holder now
                self.sequences.difference_update([s for s in sequences if not elements.is_alive(s)])

    def close(self) -> None:
        """Look at nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if (self._all_let_go or self._let_go) and self._timer is None and not self._queue.closed:
            self._timer = self._environment.scheduling.call_later(0, self._expire)

    def _expire(self) -> None:
        """Look at a portion of what was let go."""
        self._timer = None
        if self._all_let_go:
            self._all_let_go = False
            self._let_go = set(self.sequences)
        let_go, queue = self._let_go, self._queue
        portion = [let_go.pop() for _ in range(min(len(let_go), queue.expire_count))]
        queue.expire(sorted(self.sequences.intersection(portion)))
        self._arm()
