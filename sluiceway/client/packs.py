"""Packs: records that are sent as one batch, and the handles by which their senders hear of them.

A pack is open while records are added, then waits, is on its way, and is settled: with the index that the broker gave
its first record, or with an error. A handle is only a pack and a place in it, so a record costs neither an event nor
a lock of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sluiceway.client.errors import ClientError
from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.codecs import Codec

UNKNOWN_INDEX = -1
"""Index of records that are in the log, and the broker does not say where."""

_log = logging.getLogger("sluiceway.client")


class Pack:
    """Consecutive records. The outbox that made the pack guards everything but what `settle` and `wait` touch."""

    __slots__ = (
        "_callbacks",
        "_guard",
        "_settled",
        "count",
        "encoded",
        "error",
        "first_index",
        "keys",
        "number",
        "opened_at",
        "reported",
        "size_bytes",
        "values",
    )

    def __init__(self, number: int, opened_at: float) -> None:
        self.number = number
        self.opened_at = opened_at
        self.values: list[bytes] = []
        self.keys: list[bytes] | None = None
        self.size_bytes = 0
        self.count = 0
        """Number of records, known when the pack is not open any more."""
        self.encoded: bytes | None = None
        self.first_index = -1
        self.error: ClientError | None = None
        self.reported = False
        """Whether the error was raised to a caller, or goes to a callback."""
        self._callbacks: list[Callable[[], None]] = []
        self._settled = threading.Event()
        self._guard = threading.Lock()

    def add(self, values: list[bytes], key: bytes | None, size_bytes: int) -> int:
        """Append records; returns the place of the first."""
        place = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [b""] * place
        self.values += values
        if self.keys is not None:
            self.keys += [key or b""] * len(values)
        self.size_bytes += size_bytes
        return place

    def encode(self, codec: Codec, head: bytes) -> bytes:
        """The batch; made once, and the records dropped. Raises BatchError."""
        if self.encoded is None:
            self.encoded = encode(self.values, head=head, keys=self.keys, codec=codec)
            self.values = []
            self.keys = None
        return self.encoded

    @property
    def settled(self) -> bool:
        """Whether the fate of the batch is known."""
        return self._settled.is_set()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait until its fate is known; False if that took too long."""
        return self._settled.wait(timeout_seconds)

    def settle(self, first_index: int, error: ClientError | None) -> None:
        """Tell everybody. Not under the lock of the outbox: callbacks are called here."""
        with self._guard:
            self.first_index = first_index
            self.error = error
            self.encoded = None
            self.values = []
            self.keys = None
            self._settled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)

    def call_when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the pack is settled, in the thread that settles it, or now if it is settled."""
        with self._guard:
            self.reported = True
            if not self._settled.is_set():
                self._callbacks.append(callback)
                return
        _call(callback)


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a foreign function; it must not end this thread, and is not waited for
        _log.exception("a callback of a sent record failed")


class Sent:
    """Fate of records that were given to a producer: one of them, or those of one `send_many`."""

    __slots__ = ("_pack", "_place", "_rest")

    def __init__(self, pack: Pack, place: int, rest: tuple[Pack, ...] = ()) -> None:
        self._pack = pack
        self._place = place
        self._rest = rest

    @property
    def done(self) -> bool:
        """Whether their fate is known: `result` would not wait."""
        return self._pack.settled and all(pack.settled for pack in self._rest)

    def result(self, timeout_seconds: float | None = None) -> int:
        """Return the index of the (first) record, as soon as the broker has confirmed that all are on its disk.

        -1: they were in the log when they were sent again, and the broker did not know any more where (only with a
        `producer_id`, after a crash of the broker).

        Raises TimeoutError, and a ClientError if they could not be sent: then it is not known how many of them are in
        the log. An error raised here is not raised again by `send`, `flush` and `close`.
        """
        for pack in (self._pack, *self._rest):
            if not pack.wait(timeout_seconds):
                raise TimeoutError(f"no receipt for the record within {timeout_seconds:g} s; it may come yet")
        for pack in (self._pack, *self._rest):
            if pack.error is not None:
                pack.reported = True
                raise pack.error
        first_index = self._pack.first_index
        return first_index if first_index == UNKNOWN_INDEX else first_index + self._place

    def add_callback(self, callback: Callable[[Sent], None]) -> None:
        """Call `callback` with this handle when `result` is known: in the thread of the connection, where it must not
        block; at once if it is known already. Errors are then for the callback alone.
        """
        last = self._rest[-1] if self._rest else self._pack
        for pack in (self._pack, *self._rest):
            pack.reported = True
        last.call_when_settled(lambda: callback(self))
