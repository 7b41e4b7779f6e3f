"""The wire form of the load: frames made once and sent often, and the little that is read of the answers.

Bodies hold no NUL, so a NUL byte is the end of a frame and counting NULs counts frames. A *tagged* body starts with
`#STREAM.SEQUENCE.NANOSECONDS#` (padded with `x` up to its size): who sent it, the how manieth it is, and the time of
the monotonic clock at which it was made (0 where latency is not asked for). A stream with priorities tags its
high-priority messages with its number plus `HIGH_STREAM`, each class with a sequence of its own.

Only STOMP 1.2 headers are used, and three that the brokers at hand understand or pass on: `persistent`, `priority` and
the two spellings of prefetch.
"""

from __future__ import annotations

import re
from itertools import accumulate

from perf.load.plans import Endpoint
from perf.scenarios import Ack

TAG = re.compile(rb"#(\d+)\.(\d+)\.(\d+)#")
ACK_ID = re.compile(rb"\nack:([^\r\n]*)")
HIGH_STREAM = 1_000_000
_RING_COUNT_MIN = 1000
HIGH_PRIORITY = 9
NORMAL_PRIORITY = 4

BLOCK_BYTES = 256 * 1024
"""Size of a pre-encoded block: large enough that one system call carries over a thousand small messages."""


def connect(endpoint: Endpoint, heart_beat_ms: int = 0) -> bytes:
    """Return a CONNECT frame for STOMP 1.2; 0: without heart-beats."""
    return (
        f"CONNECT\naccept-version:1.2\nhost:{endpoint.virtual_host}\nlogin:{endpoint.login}\n"
        f"passcode:{endpoint.passcode}\nheart-beat:{heart_beat_ms},{heart_beat_ms}\n\n\0"
    ).encode()


def subscribe(
    destination: str, subscription_id: str, ack: Ack, prefetch_count: int, *, confirmed: bool, selector: str = ""
) -> bytes:
    """Return a SUBSCRIBE frame; `confirmed`: it asks for a receipt, so that the caller knows when it is in force."""
    selecting = f"selector:{selector}\n" if selector else ""
    receipt = f"receipt:{subscription_id}\n" if confirmed else ""
    return (
        f"SUBSCRIBE\nid:{subscription_id}\ndestination:{destination}\nack:{ack}\n"
        f"prefetch-count:{prefetch_count}\nactivemq.prefetchSize:{prefetch_count}\n{selecting}{receipt}\n\0"
    ).encode()


def acks(ids: list[bytes]) -> bytes:
    """Return one ACK frame for each `ack` header value, as it came (escapes and all)."""
    return b"ACK\nid:" + b"\n\n\0ACK\nid:".join(ids) + b"\n\n\0"


def _send_head(destination: str, body_bytes: int, persistent: bool) -> bytes:
    head = f"SEND\ndestination:{destination}\ncontent-length:{body_bytes}\n"
    return (head + "persistent:true\n" if persistent else head).encode()


class IdenticalFrames:
    """SEND frames that are all the same, cut from one block."""

    __slots__ = ("_block", "_frame_bytes", "batch_count")

    receipts_asked = 0

    def __init__(self, destination: str, body_bytes: int, persistent: bool) -> None:
        frame = _send_head(destination, body_bytes, persistent) + b"\n" + b"x" * body_bytes + b"\0"
        self.batch_count = max(1, BLOCK_BYTES // len(frame))
        """The most that one `take` gives."""
        self._block = memoryview(frame * self.batch_count)
        self._frame_bytes = len(frame)

    def take(self, count: int, now_ns: int) -> memoryview:
        """Return `count` frames (at most `batch_count`). O(1); `now_ns` is not used."""
        return self._block[: count * self._frame_bytes]


class ReceiptedFrames:
    """SEND frames that are all the same but for their receipts, cut from a ring of ready ones.

    Every `receipt_every`th asks for a receipt. The ring is longer than `window_count`, so no two receipts that are
    waited for have the same name.
    """

    __slots__ = ("_block", "_every", "_offsets", "_ring_count", "_total", "batch_count")

    def __init__(
        self, destination: str, body_bytes: int, persistent: bool, *, receipt_every: int, window_count: int
    ) -> None:
        head, tail = _send_head(destination, body_bytes, persistent), b"\n" + b"x" * body_bytes + b"\0"
        self._every = receipt_every
        self._total = 0
        self.batch_count = max(1, min(BLOCK_BYTES // (len(head) + len(tail)), window_count))
        """The most that one `take` gives."""
        rounds = -(-max(window_count + 1, _RING_COUNT_MIN) // receipt_every)
        self._ring_count = rounds * receipt_every
        ring = [head + tail] * self._ring_count
        for number in range(rounds):
            ring[(number + 1) * receipt_every - 1] = head + b"receipt:%d\n" % number + tail
        # The beginning once more behind the end, so that every batch is one piece.
        ring += [ring[index % self._ring_count] for index in range(self.batch_count)]
        self._offsets = [0, *accumulate(map(len, ring))]
        self._block = memoryview(b"".join(ring))

    @property
    def receipts_asked(self) -> int:
        """Number of receipts that the taken frames asked for."""
        return self._total // self._every

    def take(self, count: int, now_ns: int) -> memoryview:
        """Return the next `count` frames (at most `batch_count`). O(1); `now_ns` is not used."""
        at = self._total % self._ring_count
        self._total += count
        return self._block[self._offsets[at] : self._offsets[at + count]]


class TaggedFrames:
    """SEND frames that carry their number and time, and a receipt or priority header where asked for."""

    __slots__ = (
        "_body_bytes",
        "_head",
        "_high_every",
        "_high_sequence",
        "_receipt_every",
        "_sequence",
        "_stream",
        "_total",
        "batch_count",
    )

    def __init__(
        self,
        destination: str,
        body_bytes: int,
        persistent: bool,
        *,
        stream: int,
        receipt_every: int,
        high_priority_every: int,
    ) -> None:
        self._head = _send_head(destination, body_bytes, persistent)
        self._body_bytes = body_bytes
        self._stream = stream
        self._receipt_every = receipt_every
        self._high_every = high_priority_every
        self._sequence = 0
        self._high_sequence = 0
        self._total = 0
        self.batch_count = max(1, min(64, BLOCK_BYTES // (body_bytes + 100)))
        """The most that one `take` gives: few, since all of them get the same time."""

    @property
    def receipts_asked(self) -> int:
        """Number of receipts that the taken frames asked for."""
        return self._total // self._receipt_every if self._receipt_every else 0

    def take(self, count: int, now_ns: int) -> memoryview:
        """Return the next `count` frames (at most `batch_count`), made at `now_ns` on the monotonic clock."""
        frames = []
        for _ in range(count):
            self._total += 1
            frames.append(self._head)
            if self._receipt_every and self._total % self._receipt_every == 0:
                frames.append(b"receipt:%d\n" % self._total)
            stream, sequence = self._stream, self._sequence
            if self._high_every:
                if self._total % self._high_every == 0:
                    stream, sequence = stream + HIGH_STREAM, self._high_sequence
                frames.append(b"priority:%d\n" % (NORMAL_PRIORITY if stream == self._stream else HIGH_PRIORITY))
            if stream == self._stream:
                self._sequence += 1
            else:
                self._high_sequence += 1
            frames.append(b"\n")
            frames.append(tagged_body(stream, sequence, now_ns, self._body_bytes))
            frames.append(b"\0")
        return memoryview(b"".join(frames))


def tagged_body(stream: int, sequence: int, now_ns: int, body_bytes: int) -> bytes:
    """Return a tagged body of exactly `body_bytes`.

    Raises ValueError: the tag does not fit.
    """
    body = b"#%d.%d.%d#" % (stream, sequence, now_ns)
    if len(body) > body_bytes:
        raise ValueError(
            f"the tag {body!r} takes {len(body)} bytes and the body has {body_bytes}: use bodies of 40 bytes or more"
        )
    return body.ljust(body_bytes, b"x")


def error_text(received: bytes) -> str:
    """Return an ERROR frame's message and the start of its body in one line, for a fault list; or what else was
    received."""
    at = received.rfind(b"ERROR\n")
    text = received[at if at >= 0 else -300 :].decode("utf-8", "replace")
    return " ".join(text.replace("\0", " ").split())[:300]
