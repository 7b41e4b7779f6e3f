"""Twenty gigabytes are read, and the process stays as small as it was."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from sluiceway.queues.logs.batches import encode
from sluiceway.store.bigarray import ArrayOptions, BigArray, RealFiles
from sluiceway.store.bigarray.files import Bytes

GIB: Final = 1 << 30
BODY_BYTES: Final = 4 << 20
TOUCHED_SHARE: Final = 20
"""All of each twentieth batch is read, of the others the header: to fill the system's cache with holes takes time."""
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
    """Without giving back, what is touched would stay: more than a gigabyte."""
    resident_max = 16 << 20
    with BigArray.open(
        tmp_path / "array", ArrayOptions(resident_bytes_max=resident_max), files=HollowFiles(), boot_id="boot"
    ) as array:
        batch = encode([BODY])
        while array.back_file_size_bytes < 20 * GIB:
            array.append_batches([batch])
        before = resident_bytes()
        highest = index = read_bytes = touched = 0
        while index < array.next_index:
            cut = array.cut(index, array.next_index, 2 * BODY_BYTES - 1)
            if index % TOUCHED_SHARE == 0:
                touched += len(bytes(cut.data[::4096])) * 4096
            read_bytes += len(cut.data)
            index = cut.end_index
            del cut
            if index % TOUCHED_SHARE == 1:
                highest = max(highest, resident_bytes())
        assert read_bytes > 19 * GIB
        assert touched > 0.9 * GIB
        assert highest - before < resident_max * 4
