"""Twenty gigabytes are read, and the process stays as small as it was."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from queues.logs.batches import encode
from store.bigarray import ArrayOptions, BigArray, RealFiles
from store.bigarray.files import Bytes

GIB: Final = 1 << 30
BODY_BYTES: Final = 4 << 20
BODY: Final = bytes(BODY_BYTES)


class HollowFiles(RealFiles):
    """Leaves holes for long zeros: the files take no room, and read as if they did."""

    __slots__ = ()

    @staticmethod
    def pwritev(file: int, parts: Sequence[Bytes], offset: int) -> int:  # type: ignore[override]
        start = offset
        for part in parts:
            if len(part) > BODY_BYTES:
                RealFiles.pwritev(file, (memoryview(part)[:4096],), offset)
            else:
                RealFiles.pwritev(file, (part,), offset)
            offset += len(part)
        return offset - start


def resident_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_reading_twenty_gigabytes_leaves_the_process_small(tmp_path: Path) -> None:
    """Every 64 KiB of all pages are touched, through views."""
    resident_max = 64 << 20
    with BigArray.open(
        tmp_path / "array", ArrayOptions(resident_bytes_max=resident_max), files=HollowFiles(), boot_id="boot"
    ) as array:
        batch = encode([BODY])
        while array.back_file_size_bytes < 20 * GIB:
            array.append_batches([batch])
        before = resident_bytes()
        highest = index = read_bytes = touched = 0
        while index < array.next_index:
            cut = array.cut(index, array.next_index, 8 << 20)
            touched += len(bytes(cut.data[:: 1 << 16]))
            read_bytes += len(cut.data)
            index = cut.end_index
            del cut
            if index % 64 == 0:
                highest = max(highest, resident_bytes())
        assert read_bytes > 19 * GIB
        assert touched > 19 * GIB >> 16
        assert highest - before < resident_max * 2
