"""Two processes read while one writes: what they see is whole, in order, and grows."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sluiceway.store.bigarray import ArrayOptions, BigArray

RECORDS: Final = 30_000
DEADLINE_SECONDS: Final = 50
OPTIONS: Final = ArrayOptions(index_page_items=1000, data_page_bytes=1 << 16, mapped_pages_max=3, lease_items=500)

READER: Final = """
import sys
from pathlib import Path
from sluiceway.queues.logs.batches import split
from sluiceway.store.bigarray import ArrayOptions, BigArray

folder, end = Path(sys.argv[1]), int(sys.argv[2])
array = BigArray.open(folder, ArrayOptions(mapped_pages_max=3), boot_id="boot", read_only=True)
print("ready", flush=True)
index, looks = 0, 0
while index < end:
    before = array.next_index
    assert array.refresh() >= before
    looks += 1
    while index < array.next_index:
        cut = array.cut(index, array.next_index, 5000)
        assert cut.first_index == index
        for batch in split(cut.data):
            batch.verify()
            for place, value in enumerate(batch.values()):
                assert value == b"%d" % (batch.first_index + place), (index, bytes(value))
        index = cut.end_index
    if array.next_index:
        assert array.read(array.next_index - 1) == b"%d" % (array.next_index - 1)
print("read", index, flush=True)
"""


def test_two_processes_read_while_one_writes(tmp_path: Path) -> None:
    with BigArray.open(tmp_path / "array", OPTIONS, boot_id="boot") as array:
        arguments = [sys.executable, "-c", READER, str(tmp_path / "array"), str(RECORDS)]
        readers = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        try:
            for reader in readers:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n"
            index, count = 0, 1
            while index < RECORDS:
                count = min(count % 37 + 1, RECORDS - index)
                assert array.append_many([b"%d" % number for number in range(index, index + count)]) == index
                index += count
                if count == 5:
                    array.flush()
            for reader in readers:
                said, _error = reader.communicate(timeout=DEADLINE_SECONDS)
                assert (said, reader.returncode) == (f"read {RECORDS}\n", 0)
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
                assert reader.stdout is not None
                reader.stdout.close()


def test_one_thread_flushes_and_removes_while_another_appends(tmp_path: Path) -> None:
    """What was flushed is never more than what was appended, and nothing is lost."""
    with BigArray.open(tmp_path / "array", OPTIONS, boot_id="boot") as array, ThreadPoolExecutor(2) as pool:
        stop = False

        def flush() -> None:
            while not stop:
                known = array.next_index
                assert known <= array.flush() <= array.next_index
                array.limit_back_file_size(1 << 18)
                end = array.next_index
                if array.first_index < end:
                    assert [bytes(value) for value in array.read_range(end - 1, end)] == [b"%d" % (end - 1)]

        flushing = [pool.submit(flush) for _ in range(2)]
        for index in range(0, RECORDS, 10):
            assert array.append_many([b"%d" % number for number in range(index, index + 10)]) == index
        stop = True
        for done in flushing:
            done.result(DEADLINE_SECONDS)
        assert array.flush() == RECORDS
        assert 0 < array.first_index < RECORDS
        assert [bytes(value) for value in array.read_range(array.first_index, RECORDS)] == [
            b"%d" % number for number in range(array.first_index, RECORDS)
        ]
