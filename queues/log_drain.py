"""Way of committed transactions from the disk to one log: the counterpart of `SpoolDrain` (spools.py) for logs.

The pieces of a transaction are the intent: they and the commit record are on the disk before anything is appended. Each
piece is appended as a whole, with a mark in the header of its first batch (logs/marked.py), and is deleted when its
records are synced. After a crash a start looks for the mark before it appends a piece, from the index on that the piece
names: a log never has the records of a piece twice, nor in part.

Pieces are read one at a time and in order, and wait for room in the log like any sender. What waits to be written is
charged to the log; what waits to be synced is some 1 KB for each piece.

Pieces for a log that was deleted are dropped. Those for a log that is closed otherwise (the broker stops, or has made a
mistake with it) stay on the disk, and the next start goes on with them.

Invariant: `left` is called once for each piece, when its place in the log is certain or it is given up; `done` once,
when its records are synced, or are not wanted any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from ..flow import SourceController
from .logs.batches import BatchError
from .logs.log import GONE, NOT_STORED, Log
from .logs.marked import is_there, marked_batches
from .logs.ports import DiskError
from .logs.producers import stamp_of
from .message import Message
from .producers import origin_of
from .spools import DROP_COUNT, Spool

Ready = tuple[list[bytes | memoryview], int]
"""Batches, and their number of records."""


class LogDrain:
    """Pieces on their way to one log."""

    __slots__ = ("_done", "_is_reading", "_left", "_may_go", "_pieces", "_warn", "log", "source")

    def __init__(
        self,
        pieces: Iterable[tuple[Spool, int]],
        log: Log,
        source: SourceController,
        *,
        may_go: Callable[[], bool],
        left: Callable[[Spool, int], None],
        done: Callable[[], None],
        warn: Callable[..., object],
    ) -> None:
        """`pieces` (spool and place) go to `log` as `source`, while `may_go`. `left`: a piece has its place in the log,
        or is given up; `done`: it is synced, or nothing is to be done about it any more. `warn`: called with an event
        and its facts.
        """
        self._pieces = deque(pieces)
        self.log = log
        self.source = source
        """Source that the log blocks."""
        self._may_go = may_go
        self._left = left
        self._done = done
        self._warn = warn
        self._is_reading = False

    @property
    def name(self) -> str:
        """Name of the log."""
        return self.log.name

    @property
    def left_count(self) -> int:
        """Number of pieces without a place in the log."""
        return len(self._pieces)

    def go(self) -> bool:
        """Read the next piece, if it is time. Returns whether one is being read."""
        if self._is_reading:
            return True
        if not self._pieces or not self._may_go():
            return False
        if self.log.closed:
            self._give_up()
        elif not self.source.blocked:
            spool, place = self._pieces[0]
            self._is_reading = True
            spool.read(place, self._arrived, self.source.end_turn)
        return self._is_reading

    def _arrived(self, messages: list[Message]) -> None:
        """Make batches of a piece in a thread, and look whether the log has them."""
        if self.log.closed:
            self._is_reading = False
            self._give_up()
            return
        spool, place = self._pieces[0]
        records, mark, begun = self.log.records, spool.mark_of(place), spool.begun_at(place)
        known_id = self.log.log_id
        fresh, stamp = messages, _no_stamp
        if any(map(origin_of, messages)):
            fresh, stamp = self.log.open_producers().fresh(messages), partial(_stamp, known_id)

        def look() -> Ready | BatchError | None:
            if begun is not None:
                log_id, from_index = begun
                # A log that was made anew has what came to it from its beginning on.
                if is_there(records, from_index if log_id == known_id else 0, mark):
                    records.flush()
                    return None
            try:
                return marked_batches(fresh, mark, NOT_STORED, records.batch_bytes_max, stamp)
            except BatchError as error:
                return error.with_traceback(None)

        self.log.elsewhere(look, partial(self._looked, messages, fresh))

    def _looked(
        self, messages: list[Message], fresh: list[Message], found: Ready | BatchError | DiskError | None
    ) -> None:
        origins = [origin for message in fresh if (origin := origin_of(message)) is not None]
        if origins and len(self.log.open_producers().fresh(fresh)) < len(fresh) and not self.log.closed:
            self._arrived(messages)  # another sender of one of these was faster
            return
        self._is_reading = False
        if self.log.closed:
            self._give_up()
            return
        if isinstance(found, BatchError | DiskError):
            # The piece stays on the disk: another start may find a log that takes it.
            self._warn("records of a committed transaction stay on the disk", log=self.name, error=str(found))
            self._next()
            self._done()
            self.source.end_turn()
            return
        if found is None or not found[1]:
            spool, place = self._pieces[0]
            self._next()
            appended = partial(spool.appended, place, self._done)
            if messages and found is not None:  # all of it was there before: it goes when that is safe
                self.log.open_producers().duplicates_count += len(messages)
                self.log.when_synced(appended)
            else:
                appended()
        elif not self.source.blocked and self.log.take_committed(*found, self.source, origins):
            spool, place = self._pieces[0]
            if origins:
                self.log.open_producers().duplicates_count += len(messages) - len(fresh)
            self._next()
            self.log.when_durable(partial(self._durable, spool, place), synced=True)
        self.source.end_turn()
        self.go()

    def _next(self) -> None:
        self._left(*self._pieces.popleft())

    def _durable(self, spool: Spool, place: int, how: str, _indexes: object) -> None:
        if how == GONE:
            spool.moved(place, None, 0, persistent=False, done=self._done)
        else:
            spool.appended(place, self._done)

    def _give_up(self) -> None:
        """Leave the pieces on the disk, or drop them with a log that was deleted, some at a time."""
        self.source.end_turn()
        if not self.log.is_deleted:
            while self._pieces:
                self._left(*self._pieces.popleft())
                self._done()
            return
        for spool, place in list(islice(self._pieces, DROP_COUNT)):
            self._pieces.popleft()
            self._left(spool, place)
            spool.moved(place, None, 0, persistent=False, done=self._dropped)

    def _dropped(self) -> None:
        self._done()
        self.go()


def _no_stamp(_message: Message) -> bytes:
    return b""


def _stamp(log_id: str, message: Message) -> bytes:
    """Return the header line that names the producer of a message, or nothing."""
    origin = origin_of(message)
    return b"" if origin is None else stamp_of(log_id, origin)
