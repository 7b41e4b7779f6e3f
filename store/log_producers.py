"""Snapshots of the producers that logs know, as records of the store (family n).

Source: FORMAT.md, "Producers of a log".
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Final

from ..queues.logs.producers import KnownProducer, Place, ProducerSnapshot
from .engine import Engine
from .keys import LOG_PRODUCERS, StoreFormatError, family_range, parse_log_producers_key

LAYOUT: Final = 1
_HEAD: Final = Struct("<BBQI")
_ENTRY: Final = Struct("<HQQB")
_PLACE: Final = Struct("<QQI")


class ProducersFormatError(StoreFormatError):
    """A snapshot that can't be read."""


def encode_producers(snapshot: ProducerSnapshot) -> bytes:
    """Return the record of a snapshot. O(producers)."""
    log_id = snapshot.log_id.encode()
    parts = [_HEAD.pack(LAYOUT, len(log_id), snapshot.end_index, len(snapshot.producers)), log_id]
    for known in snapshot.producers:
        name = known.name.encode()
        parts.append(_ENTRY.pack(len(name), known.sequence, known.used_ms, len(known.places)))
        parts.append(name)
        parts += [_PLACE.pack(*place) for place in known.places]
    return b"".join(parts)


def decode_producers(value: bytes) -> ProducerSnapshot:
    """Return the snapshot of a record. Raises ProducersFormatError for anything malformed."""
    try:
        layout, id_bytes, end_index, count = _HEAD.unpack_from(value)
        if layout != LAYOUT:
            raise ProducersFormatError(f"producers of a log: unknown layout {layout}: damaged, or of a later version")
        offset = _HEAD.size + id_bytes
        log_id = value[_HEAD.size : offset].decode()
        found: list[KnownProducer] = []
        for _ in range(count):
            name_bytes, sequence, used_ms, places_count = _ENTRY.unpack_from(value, offset)
            offset += _ENTRY.size
            name = value[offset : offset + name_bytes].decode()
            offset += name_bytes
            places: list[Place] = []
            for _place in range(places_count):
                places.append(_PLACE.unpack_from(value, offset))
                offset += _PLACE.size
            found.append(KnownProducer(name, sequence, used_ms, tuple(places)))
    except (StructError, UnicodeDecodeError) as error:
        raise ProducersFormatError(f"producers of a log: {error}") from None
    if offset != len(value):
        raise ProducersFormatError(f"producers of a log: {len(value) - offset} bytes too many")
    return ProducerSnapshot(log_id, end_index, tuple(found))


def kept_producers(engine: Engine, bad: Callable[[str, StoreFormatError], None]) -> dict[str, ProducerSnapshot]:
    """Return all snapshots, by the names of logs; `bad` gets a key, and why its record can't be read. Blocks. Raises
    EngineError.
    """
    found: dict[str, ProducerSnapshot] = {}
    for key, value in engine.iterate(*family_range(LOG_PRODUCERS)):
        try:
            found[parse_log_producers_key(key)] = decode_producers(value)
        except StoreFormatError as error:
            bad(key.hex(), error)
    return found
