"""Compression of batches: gzip, snappy, zstd, or none. The producer chooses; the broker never compresses.

Expanding is bounded: a batch states the size of its expanded body, the caller checks that size, a buffer of exactly
that size is made, and a body of any other length is refused. A decompression bomb cannot exceed its stated size. Snappy
is the raw block format, without frames.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import cramjam


class Codec(IntEnum):
    """Compression of a batch body; the number is stored in the batch header."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    ZSTD = 3

    @property
    def label(self) -> str:
        """Name in headers and texts."""
        return self.name.lower()


class CodecError(ValueError):
    """Compressed bytes that do not expand to the stated body. The message says why."""


def codec_named(name: str) -> Codec:
    """Return the codec `none`, `gzip`, `snappy` or `zstd`. Raises CodecError for other names."""
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
    """Return the compressed body of a batch."""
    return plain if codec is Codec.NONE else bytes(_COMPRESS[codec](plain))


Room = Callable[[int], Any]
"""Allocator of a writable buffer of the given size."""


def expand(codec: Codec, body: bytes | memoryview, plain_bytes: int, room: Room = bytearray) -> bytes | memoryview:
    """Return the expanded body of exactly `plain_bytes`, a size the caller has accepted; without a codec the body
    itself. Raises CodecError.
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
