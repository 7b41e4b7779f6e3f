"""The file `head`: sizes of the pages, and the extent of the array. See FORMAT.md.

    0     36 bytes  fixed when the array is created: magic, version, sizes of the pages, CRC-32
    512   72 bytes  slot of even sequence numbers
    1024  72 bytes  slot of odd ones
    1536  72 bytes  identity, given once: a name that no other array has. Zeros: made by an earlier version
    4096            end; all of it is allocated, so that a full disk can't keep the head from being written

The whole slot with the higher sequence number counts. The slots lie in different sectors and are written in turn, so
that a torn write leaves the other. A commit is the write of one slot. The identity lies in a sector of its own, so that
adding one later risks nothing else.
"""

from __future__ import annotations

import re
import struct
from hashlib import blake2b
from typing import Final

import attrs
from zlib_ng import zlib_ng

from .errors import ArrayFormatError

MAGIC: Final = b"SLUICEAR"
VERSION: Final = 1
FIXED: Final = struct.Struct("<8sIIQQI")
SLOT: Final = struct.Struct("<QQQQQQIIQII")
SLOT_BYTES: Final = SLOT.size
HEAD_BYTES: Final = 4096
SLOT_OFFSETS: Final = (512, 1024)
IDENTITY: Final = struct.Struct("<I64sI")
IDENTITY_OFFSET: Final = 1536
_IDENTITY: Final = re.compile(r"[0-9A-Za-z]{1,64}")
CLEAN: Final = 1
"""Flag: closed in order; everything is synced."""
SUSPECT: Final = 2
"""Flag: a sync failed. Data written since the last successful sync may be in memory only, and the next sync may skip
it: rewrite it."""

_CHECKED_BYTES: Final = SLOT_BYTES - 4
_CRC: Final = struct.Struct("<I")


@attrs.define
class Slot:
    """Extent of the array."""

    sequence: int = 0
    first_index: int = 0
    next_index: int = 0
    synced_index: int = 0
    lease_index: int = 0
    """First index that was never visible."""
    last_timestamp_ms: int = 0
    data_page: int = 0
    data_offset: int = 0
    """Offset of the next batch, if it fits."""
    boot: int = 0
    """Start of the machine in which the slot was written; see `boot_hash`."""
    flags: int = CLEAN


def boot_hash(boot_id: str) -> int:
    """Return the hash of a boot id; never 0, which stands for none."""
    return int.from_bytes(blake2b(boot_id.encode(), digest_size=8).digest(), "little") | 1


def encode_fixed(index_page_items: int, data_page_bytes: int) -> bytes:
    lead = FIXED.pack(MAGIC, VERSION, 0, index_page_items, data_page_bytes, 0)[:-4]
    return lead + _CRC.pack(zlib_ng.crc32(lead))


def decode_fixed(data: bytes, name: str) -> tuple[int, int]:
    """Return items of an index page and bytes of a data page. `name`: of the file. Raises ArrayFormatError."""
    if len(data) < FIXED.size or data[:8] != MAGIC:
        raise ArrayFormatError(
            f"{name} is not the head of an array. Choose another folder, or restore that file from a backup."
        )
    _magic, version, _zero, items, page_bytes, crc = FIXED.unpack_from(data)
    if version != VERSION:
        raise ArrayFormatError(
            f"{name} has format {version}, this version of Sluiceway knows format {VERSION}. Use the version that made "
            "it, or choose another folder."
        )
    if zlib_ng.crc32(data[: FIXED.size - 4]) != crc or not items or not page_bytes:
        raise ArrayFormatError(f"{name} is damaged: its checksum is wrong. Restore that file from a backup.")
    return items, page_bytes


def encode_slot(slot: Slot) -> bytes:
    return pack_slot(*attrs.astuple(slot, recurse=False))


def pack_slot(
    sequence: int,
    first_index: int,
    next_index: int,
    synced_index: int,
    lease_index: int,
    last_timestamp_ms: int,
    data_page: int,
    data_offset: int,
    boot: int,
    flags: int,
) -> bytes:
    """Encode a slot on the hot path, without an object."""
    lead = SLOT.pack(
        sequence, first_index, next_index, synced_index, lease_index, last_timestamp_ms, data_page, data_offset, boot,
        flags, 0,
    )[:_CHECKED_BYTES]  # fmt: skip
    return lead + _CRC.pack(zlib_ng.crc32(lead))


def decode_slot(data: bytes) -> Slot | None:
    """Return the slot. None: not whole, or inconsistent."""
    if len(data) < SLOT_BYTES or zlib_ng.crc32(data[:_CHECKED_BYTES]) != _CRC.unpack_from(data, _CHECKED_BYTES)[0]:
        return None
    slot = Slot(*SLOT.unpack_from(data)[:-1])
    in_order = slot.first_index <= slot.next_index and slot.synced_index <= slot.next_index <= slot.lease_index
    return slot if slot.sequence and in_order else None


def encode_identity(identity: str) -> bytes:
    """Encode an identity. Raises ValueError if it is not 1 to 64 letters and digits of ASCII."""
    if _IDENTITY.fullmatch(identity) is None:
        raise ValueError(f"an identity is 1 to 64 letters and digits of ASCII, not {identity[:80]!r}")
    lead = IDENTITY.pack(len(identity), identity.encode(), 0)[:-4]
    return lead + _CRC.pack(zlib_ng.crc32(lead))


def decode_identity(data: bytes) -> str:
    """Return the identity. Empty: none, or not whole."""
    if (
        len(data) < IDENTITY.size
        or zlib_ng.crc32(data[: IDENTITY.size - 4]) != _CRC.unpack_from(data, IDENTITY.size - 4)[0]
    ):
        return ""
    length, text, _crc = IDENTITY.unpack_from(data)
    identity: str = text[:length].decode("latin-1")
    return identity if length <= len(text) and _IDENTITY.fullmatch(identity) is not None else ""


def identity_of(head: bytes) -> str:
    """Return the identity of the array with this head. Empty: as `decode_identity`."""
    return decode_identity(head[IDENTITY_OFFSET : IDENTITY_OFFSET + IDENTITY.size])


def newest(data: bytes) -> Slot | None:
    """Return the newest slot in these bytes of a head. None: neither is whole."""
    slots = [decode_slot(data[offset : offset + SLOT_BYTES]) for offset in SLOT_OFFSETS]
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot.sequence, default=None)


def new_head(index_page_items: int, data_page_bytes: int, identity: str) -> bytes:
    """Return the head of an empty array. `identity`: empty for none."""
    head = bytearray(HEAD_BYTES)
    head[: FIXED.size] = encode_fixed(index_page_items, data_page_bytes)
    for sequence in (1, 2):
        offset = SLOT_OFFSETS[sequence & 1]
        head[offset : offset + SLOT_BYTES] = encode_slot(Slot(sequence=sequence))
    if identity:
        head[IDENTITY_OFFSET : IDENTITY_OFFSET + IDENTITY.size] = encode_identity(identity)
    return bytes(head)
