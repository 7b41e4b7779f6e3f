"""FORMAT.md is what the code does: every example in it is decoded, compared with what it says, and written again."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

import sluiceway.store.bigarray.head
from sluiceway.queues.logs import batches
from sluiceway.queues.logs.batches import Batch, encode, stamped
from sluiceway.queues.logs.codecs import codec_named
from sluiceway.store.bigarray import ArrayGap, ArrayOptions
from sluiceway.store.bigarray.compacting import CHECKPOINT, decode_checkpoint, encode_checkpoint
from sluiceway.store.bigarray.gaps import HEADER, RECORD, decode_gaps, encode_gaps
from sluiceway.store.bigarray.head import (
    FIXED,
    HEAD_BYTES,
    IDENTITY,
    IDENTITY_OFFSET,
    SLOT,
    SLOT_OFFSETS,
    VERSION,
    Slot,
    boot_hash,
    decode_fixed,
    decode_identity,
    decode_slot,
    encode_fixed,
    encode_identity,
    encode_slot,
)
from sluiceway.store.bigarray.reading import ITEM, MORE, REMOVED, TIME_MASK

DOCUMENT: Final = (Path(sluiceway.store.bigarray.head.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")


def parts_of(text: str) -> tuple[bytes, Any]:
    """Bytes and what they read as, of one fenced block."""
    value, reads = re.fullmatch(r"value(.*?)^reads(.*)", text, re.MULTILINE | re.DOTALL).groups()  # type: ignore[union-attr]
    return bytes.fromhex(re.sub(r"#.*", "", value)), ast.literal_eval(reads.strip())


EXAMPLES: Final = {
    name: parts_of(text) for name, text in re.findall(r"^```hex (\S+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
}


def slot_reads(value: bytes) -> tuple[Any, ...]:
    slot = decode_slot(value)
    assert slot is not None
    return attrs.astuple(slot)


def items_read(value: bytes) -> list[tuple[int, int, bool, bool]]:
    return [
        (position, time & TIME_MASK, bool(time & MORE), bool(time & REMOVED))
        for position, time in ITEM.iter_unpack(value)
    ]


def items_again(reads: list[tuple[int, int, bool, bool]]) -> bytes:
    return b"".join(
        ITEM.pack(position, time | MORE * more | REMOVED * removed) for position, time, more, removed in reads
    )


def batch_reads(value: bytes) -> tuple[Any, ...]:
    batch = Batch(value)
    batch.check(plain_bytes_max=1000)
    assert batch.is_stamped_right() == bool(batch.timestamp_ms)
    keys = batch.keys()
    values = [bytes(value) for value in batch.values()]
    return (
        batch.first_index, batch.timestamp_ms, batch.head, batch.codec.label, values,
        None if keys is None else [bytes(key) for key in keys],
    )  # fmt: skip


def batch_again(reads: tuple[Any, ...]) -> bytes:
    first_index, timestamp_ms, head, codec, values, keys = reads
    batch = encode(values, head=head, keys=keys, codec=codec_named(codec))
    return stamped(batch, first_index, timestamp_ms) + batch[32:] if timestamp_ms else batch


RECORDS: Final[dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]]] = {
    "fixed": (lambda value: decode_fixed(value, "head"), lambda reads: encode_fixed(*reads)),
    "slot": (slot_reads, lambda reads: encode_slot(Slot(*reads))),
    "identity": (decode_identity, encode_identity),
    "items": (items_read, items_again),
    "batch": (batch_reads, batch_again),
    "batch-snappy": (batch_reads, batch_again),
    "compacted": (decode_checkpoint, encode_checkpoint),
    "gaps": (
        lambda value: [attrs.astuple(gap) for gap in decode_gaps(value) or ()],
        lambda reads: encode_gaps(ArrayGap(*gap) for gap in reads),
    ),
}


def test_every_record_has_one_example() -> None:
    assert sorted(EXAMPLES) == sorted(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_an_example_reads_as_it_says_and_is_what_the_code_writes(name: str) -> None:
    value, reads = EXAMPLES[name]
    decode, encode_again = RECORDS[name]
    assert decode(value) == reads
    assert encode_again(reads) == value


def test_sizes_and_defaults_are_those_of_the_code() -> None:
    assert DOCUMENT.startswith(f"# Format of an array\n\nVersion {VERSION}.")
    assert f"| 0 | {FIXED.size} | fixed part |" in DOCUMENT
    even, odd = SLOT_OFFSETS
    assert f"| {even} | {SLOT.size} | slot of even" in DOCUMENT
    assert f"| {odd:,} | {SLOT.size} | slot of odd" in DOCUMENT
    assert f"| {IDENTITY_OFFSET:,} | {IDENTITY.size} | identity" in DOCUMENT
    assert f"| `head` | {HEAD_BYTES:,} |" in DOCUMENT
    assert f"| `gaps` | {HEADER.size} + {RECORD.size} n |" in DOCUMENT
    assert f"| `compacted` | {CHECKPOINT.size} |" in DOCUMENT
    options = ArrayOptions()
    assert f"(by default {options.index_page_items:,} items, {options.data_page_bytes:,} bytes)" in DOCUMENT
    assert f"`lease_items` ({options.lease_items:,})" in DOCUMENT
    assert f"every {options.dirty_pages_max} pages" in DOCUMENT
    assert f"1 to {batches.COUNT_MAX:,} |" in DOCUMENT
    assert boot_hash("example") == EXAMPLES["slot"][1][8]
