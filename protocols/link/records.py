"""Records of a link: bytes to records and back, whatever the chunking.

A link begins with `PREFACE`, so that a peer that is no hub is told from one that is. Behind it come records: the
number of payload bytes (4), the number of the flow (4; 0: the link itself), the kind (1), the payload. Data is cut
into records of at most `DATA_BYTES_MAX`, so that no flow keeps the others waiting for long; all other payloads are
short.

Pure. Bound: less than one record is held. Not here: which record may come when (`machine`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

PREFACE: Final = b"sluiceway-link\r\n"
"""First bytes of either side of a link."""
DATA_BYTES_MAX: Final = 128 * 1024
"""Payload of one record of data."""
WORDS_BYTES_MAX: Final = 64 * 1024
"""Payload of any other record."""

_HEAD: Final = Struct("!IIB")
HEAD_BYTES: Final = _HEAD.size
_TAKEN: Final = Struct("!QQ")
_SIZE: Final = Struct("!Q")
_LEASE: Final = Struct("!I")


class LinkFault(Exception):
    """The peer is no hub of this cluster, or broke the rules of links. The message says how, in words."""


class OpeningTooLargeError(Exception):
    """The opening record of a flow would be larger than a record may be. Nothing was sent."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes are too many for an opening record: {WORDS_BYTES_MAX} are allowed")
        self.size_bytes = size_bytes


class Kind(IntEnum):
    """Kinds of records."""

    HELLO = 1
    """Identity of a hub (JSON)."""
    PROOF = 2
    """Proof of that identity: a keyed hash, or nothing where the stream has proved it."""
    GOODBYE = 3
    """Reason of an orderly end (text). No new flow is opened behind it."""
    PING = 4
    PONG = 5
    """Milliseconds for which deliveries that come behind the PING may be delivered (4); nothing: as long as any."""
    SHARDS = 6
    """Numbers of the shards that the hub has open (JSON), from now on."""
    OPEN = 16
    """First record of a flow: for whom the flow is (JSON)."""
    DATA = 17
    """Bytes of STOMP frames; the last frame is complete."""
    PART = 18
    """Bytes of STOMP frames that a later DATA completes."""
    CONTROL = 19
    """Whole frames that are no MESSAGEs: CONNECTED, RECEIPT, ERROR."""
    LARGE = 20
    """Size of one frame, whose bytes follow in PART and DATA with nothing between them."""
    TAKEN = 21
    """Number of bytes of the flow that were read, and of those that have had their effect."""
    END = 22
    """Last record of a flow in one direction, with its reason (text)."""
    FACTS = 23
    """Facts about the hub that has taken the flow (JSON)."""
    MISSED = 24
    """Count of messages to each topic that were not sent over the flow, because it lagged (JSON)."""


DATA_KINDS: Final = frozenset({Kind.DATA, Kind.PART, Kind.CONTROL})
_KINDS: Final = {int(kind): kind for kind in Kind}


class Record(NamedTuple):
    """One record."""

    kind: Kind
    flow: int
    payload: bytes


def head_of(kind: Kind, flow: int, size_bytes: int) -> bytes:
    """Return the bytes in front of a payload."""
    return _HEAD.pack(size_bytes, flow, kind)


def encode(kind: Kind, flow: int, payload: bytes = b"") -> bytes:
    """Return one record as bytes."""
    return _HEAD.pack(len(payload), flow, kind) + payload


def cut(kind: Kind, flow: int, data: bytes | memoryview) -> Iterator[tuple[bytes, bytes | memoryview]]:
    """Yield head and payload of each record that carries this data, without a copy. The last one has the kind; those
    before it are PART (or CONTROL, which may be cut anywhere).
    """
    size_bytes = len(data)
    if size_bytes <= DATA_BYTES_MAX:
        yield _HEAD.pack(size_bytes, flow, kind), data
        return
    view = memoryview(data)
    before = kind if kind is Kind.CONTROL else Kind.PART
    for start in range(0, size_bytes, DATA_BYTES_MAX):
        piece = view[start : start + DATA_BYTES_MAX]
        yield _HEAD.pack(len(piece), flow, kind if start + DATA_BYTES_MAX >= size_bytes else before), piece


def encode_taken(flow: int, read_bytes: int, done_bytes: int) -> bytes:
    """Return a TAKEN record."""
    return _HEAD.pack(_TAKEN.size, flow, Kind.TAKEN) + _TAKEN.pack(read_bytes, done_bytes)


def decode_taken(payload: bytes) -> tuple[int, int]:
    """Return the two numbers of a TAKEN record: bytes read, and bytes done. Raises LinkFault."""
    if len(payload) != _TAKEN.size:
        raise LinkFault(f"a confirmation has {len(payload)} bytes, not {_TAKEN.size}")
    read_bytes, done_bytes = _TAKEN.unpack(payload)
    if done_bytes > read_bytes:
        raise LinkFault("a confirmation says that more bytes had their effect than were read")
    return read_bytes, done_bytes


def encode_size(kind: Kind, flow: int, size_bytes: int) -> bytes:
    """Return a record whose payload is a number of bytes."""
    return _HEAD.pack(_SIZE.size, flow, kind) + _SIZE.pack(size_bytes)


def decode_size(payload: bytes) -> int:
    """Return the number of bytes in a payload. Raises LinkFault."""
    if len(payload) != _SIZE.size:
        raise LinkFault(f"a size is written in {len(payload)} bytes, not {_SIZE.size}")
    size: int = _SIZE.unpack(payload)[0]
    if not size:
        raise LinkFault("a frame of no bytes was announced")
    return size


def encode_lease(seconds: float) -> bytes:
    """Return the payload of a PONG."""
    return _LEASE.pack(int(seconds * 1000))


def decode_lease(payload: bytes, longest_seconds: float) -> float:
    """Return the seconds in the payload of a PONG. Raises LinkFault."""
    if not payload:
        return longest_seconds  # of a hub of an earlier version
    if len(payload) != _LEASE.size:
        raise LinkFault(f"a lease is written in {len(payload)} bytes, not {_LEASE.size}")
    milliseconds: int = _LEASE.unpack(payload)[0]
    return milliseconds / 1000


def encode_missed(missed: Mapping[str, int]) -> bytes:
    """Return the payload of a MISSED record: counts by topic."""
    return json.dumps(missed).encode()


def decode_missed(payload: bytes) -> Mapping[str, int]:
    """Read the payload of a MISSED record. Raises LinkFault."""
    try:
        missed = json.loads(payload)
    except ValueError:
        missed = None
    if not isinstance(missed, dict) or not all(type(count) is int and count >= 0 for count in missed.values()):
        raise LinkFault("the peer told in an invalid record what it did not send")
    return missed


class RecordReader:
    """Reader of the bytes of one peer. Unusable after a LinkFault.

    Bytes of STOMP frames are given out as far as they have come, and all that one read brings of a flow as one record:
    so they are copied once, whatever the sizes of reads and records, and the user of the flow acts on much at once. All
    other records are given out whole.
    """

    __slots__ = ("_begun", "_chunks", "_held_bytes", "_missing_bytes", "_preface_left", "payload_bytes_max")

    def __init__(self) -> None:
        self._preface_left = PREFACE
        self._begun: tuple[Kind, int] | None = None
        """Kind and flow of a record whose head has come; None: a head is next."""
        self._missing_bytes = 0
        """Bytes of that record that have not come."""
        self._chunks: list[bytes] = []
        """Pieces of a head, or of a payload that is given out whole: joined once, when all is there."""
        self._held_bytes = 0
        self.payload_bytes_max = WORDS_BYTES_MAX
        """Maximum payload of a record; the machine raises it when the peer has proved who it is."""

    @property
    def held_bytes(self) -> int:
        """Bytes of a record that has not come whole."""
        return self._held_bytes + (HEAD_BYTES if self._begun else 0)

    def feed(self, data: bytes) -> list[Record]:
        """Return what these bytes complete, in order. Raises LinkFault; what came before the fault is lost then."""
        if self._preface_left:
            data = self._greet(data)
        records: list[Record] = []
        view = memoryview(data)
        stretch: list[memoryview] = []
        stretch_flow = 0
        at, end = 0, len(data)
        while at < end:
            if self._begun is None:
                at = self._begin(data, at)
                if self._begun is None:
                    break
            kind, flow = self._begun
            size_bytes = min(self._missing_bytes, end - at)
            self._missing_bytes -= size_bytes
            is_whole = not self._missing_bytes
            if kind is Kind.PART or kind is Kind.DATA:
                if stretch and flow != stretch_flow:
                    records.append(Record(Kind.PART, stretch_flow, b"".join(stretch)))
                    stretch = []
                if size_bytes or is_whole:
                    stretch.append(view[at : at + size_bytes])
                    stretch_flow = flow
                if is_whole and kind is Kind.DATA:
                    records.append(Record(kind, flow, b"".join(stretch)))
                    stretch = []
            else:
                if stretch:
                    records.append(Record(Kind.PART, stretch_flow, b"".join(stretch)))
                    stretch = []
                self._hold(data[at : at + size_bytes])
                if is_whole:
                    records.append(Record(kind, flow, self._take_held()))
            at += size_bytes
            if is_whole:
                self._begun = None
        if stretch:
            records.append(Record(Kind.PART, stretch_flow, b"".join(stretch)))
        return records

    def _begin(self, data: bytes, at: int) -> int:
        """Read a head, as far as it has come. Returns where its payload begins. Raises LinkFault."""
        if self._held_bytes or len(data) - at < HEAD_BYTES:
            piece = data[at : at + HEAD_BYTES - self._held_bytes]
            self._hold(piece)
            at += len(piece)
            if self._held_bytes == HEAD_BYTES:
                kind, flow, self._missing_bytes = self._head(self._take_held(), 0)
                self._begun = kind, flow
            return at
        kind, flow, self._missing_bytes = self._head(data, at)
        self._begun = kind, flow
        return at + HEAD_BYTES

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._chunks.append(piece)
            self._held_bytes += len(piece)

    def _take_held(self) -> bytes:
        chunks, self._chunks, self._held_bytes = self._chunks, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _head(self, data: bytes, at: int) -> tuple[Kind, int, int]:
        """Return kind, flow and payload size of the record that begins here. Raises LinkFault."""
        size_bytes, flow, number = _HEAD.unpack_from(data, at)
        kind = _KINDS.get(number)
        if kind is None:
            raise LinkFault(f"the peer sent a record of kind {number}, which does not exist")
        if size_bytes > (self.payload_bytes_max if kind in DATA_KINDS else WORDS_BYTES_MAX):
            raise LinkFault(f"the peer sent a record {kind.name} of {size_bytes} bytes, which is too large")
        return kind, flow, size_bytes

    def _greet(self, data: bytes) -> bytes:
        """Take the preface off. Raises LinkFault at the first byte that differs."""
        size_bytes = min(len(data), len(self._preface_left))
        if data[:size_bytes] != self._preface_left[:size_bytes]:
            came = PREFACE[: len(PREFACE) - len(self._preface_left)] + data[:32]
            raise LinkFault(f"the peer is no hub: it began with {came!r}, not with {PREFACE!r}")
        self._preface_left = self._preface_left[size_bytes:]
        return data[size_bytes:]
