"""Compression of batches: gzip, snappy, zstd, or none. The producer's choice; the broker never compresses.

Expanding is bounded: a batch says how large its body is when expanded, a buffer of just that size is made (after the
caller has looked at the figure), and whatever is not exactly as long is refused. So a bomb costs what it admits to.
Snappy is the raw block format, without frames.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import cramjam


class Codec(IntEnum):
    """How the body of a batch is stored; the number is what stands in its header."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    ZSTD = 3

    @property
    def label(self) -> str:
        """As people and headers write it."""
        return self.name.lower()


class CodecError(ValueError):
    """Compressed bytes that do not expand to what they should. The message says why."""


def codec_named(name: str) -> Codec:
    """`none`, `gzip`, `snappy` or `zstd`. Raises CodecError for anything else."""
    for codec in Codec:
        if codec.label == name:
            return codec
    raise CodecError(f"compression {name[:40]!r} is not known: use none, gzip, snappy or zstd")


_COMPRESS: Final[dict[Codec, Callable[[bytes], Any]]] = {
    Codec.GZIP: cramjam.gzip.compress,
    Codec.SNAPPY: cramjam.snappy.compress_raw,
    Codec.ZSTD: cramjam.zstd.compress,
}
_EXPAND_INTO: Final[dict[Codec, Callable[[Any, Any], int]]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.SNAPPY: cramjam.snappy.decompress_raw_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def compress(codec: Codec, plain: bytes) -> bytes:
    """The body of a batch, compressed."""
    return plain if codec is Codec.NONE else bytes(_COMPRESS[codec](plain))


Room = Callable[[int], Any]
"""Makes a buffer of so many bytes that can be written to."""


def expand(codec: Codec, body: bytes | memoryview, plain_bytes: int, room: Room = bytearray) -> bytes | memoryview:
    """What was compressed: exactly `plain_bytes` of it, which the caller has found to be acceptable. Without a codec
    the body itself. Raises CodecError.
    """
    if codec is Codec.NONE:
        if len(body) != plain_bytes:
            raise CodecError(f"the body has {len(body)} bytes, its batch says {plain_bytes}")
        return body
    buffer = room(plain_bytes)
    try:
        length_bytes = _EXPAND_INTO[codec](bytes(body), buffer)
    except (cramjam.DecompressionError, ValueError) as error:
        raise CodecError(f"{codec.label}: {error}") from None
    if length_bytes != plain_bytes:
        raise CodecError(f"{codec.label}: expands to {length_bytes} bytes, its batch says {plain_bytes}")
    return memoryview(buffer).toreadonly()
