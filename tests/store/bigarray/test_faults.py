"""The disk fails at each step of a life, once: nothing is appended in half, and all goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.bigarray import ArrayError, ArrayFailedError, ArrayFullError
from tests.how_often import rounds
from tests.store.bigarray.twin import Twin


def life(twin: Twin) -> int:
    """A bit of everything. Returns how many steps failed."""

    def append(count: int, size: int) -> None:
        twin.append([bytes([48 + count]) * size] * count, keys=None, head=b"", codec=Codec.NONE)

    steps: list[Callable[[], None]] = [
        lambda: append(3, 10),
        lambda: append(2, 20),
        twin.flush,
        lambda: append(20, 5),
        lambda: twin.append_batches([[b"a" * 300], [b"b" * 300], [b"c" * 300]], Codec.NONE),
        lambda: append(1, 900),
        twin.flush,
        lambda: append(1, 1),
        lambda: twin.remove_to(26),
        lambda: append(9, 9),
        twin.close,
        lambda: append(2, 2),
        twin.flush,
        twin.close,
    ]
    failed_count = 0
    for step in steps:
        while twin.array is None:
            try:
                twin.open()
            except ArrayError:
                failed_count += 1
                twin.files.kill()
        try:
            step()
        except ArrayError:
            failed_count += 1
    return failed_count


@pytest.mark.parametrize(("error", "short"), [(errno.ENOSPC, True), (errno.EIO, False)], ids=["full", "failed"])
def test_one_failure_costs_one_step_and_nothing_else(tmp_path: Path, error: int, short: bool) -> None:
    """At each write, sync, creation, removal and truncation in turn; behind it a kill, or with the other error a power
    cut.
    """
    at = 0
    while True:
        at += 1
        twin = Twin(tmp_path / str(at), at)
        twin.files.fail(at, error, short=short)
        failed_count = life(twin)
        if not twin.files.has_failed:
            break
        assert failed_count == 1, at
        while twin.array is None:
            twin.open()
        twin.compare()
        twin.append([b"one more"], keys=None, head=b"", codec=Codec.NONE)
        if at % 2 == short:
            twin.kill()
        else:
            twin.power_cut()
        twin.open()
        twin.compare()
        twin.files.kill()
    twin.files.kill()
    assert at > 100, "that was no life"


def test_a_full_disk_and_a_broken_one_are_different_errors(tmp_path: Path) -> None:
    twin = Twin(tmp_path, 0)
    twin.open()
    for error, kind in ((errno.ENOSPC, ArrayFullError), (errno.EDQUOT, ArrayFullError), (errno.EIO, ArrayFailedError)):
        twin.files.fail(1, error)
        with pytest.raises(kind, match=r"appending in .*array failed: .*\. (Free|Look)"):
            twin.append([b"x"], keys=None, head=b"", codec=Codec.NONE)
        twin.append([b"x"], keys=None, head=b"", codec=Codec.NONE)
    twin.compare()
    twin.files.kill()


def test_after_a_failed_sync_the_next_one_writes_all_again(tmp_path: Path) -> None:
    """The kernel takes what it could not write for written: to sync once more is not enough."""
    for seed in range(rounds(4)):
        twin = Twin(tmp_path / str(seed), seed)
        twin.open()
        for place in range(30):
            twin.append([b"%d" % place] * 3, keys=None, head=b"", codec=Codec.NONE)
        twin.files.fail(1 + seed % 4, errno.EIO)
        with pytest.raises(ArrayFailedError):
            twin.flush()
        if seed % 2:
            twin.kill()
            twin.open()
        else:
            twin.flush()
        twin.power_cut()
        twin.open()
        assert twin.lost_count == 0
        twin.compare()
        twin.files.kill()


def test_what_memory_was_too_short_to_flush_is_flushed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would count as synced, and be lost with the power."""
    twin = Twin(tmp_path, 0)
    twin.open()
    for place in range(30):
        twin.append([b"%d" % place] * 3, keys=None, head=b"", codec=Codec.NONE)
    with monkeypatch.context() as patch:
        patch.setattr(twin.files, "sync", _no_memory)
        with pytest.raises(MemoryError):
            twin.flush()
    twin.flush()
    twin.power_cut()
    twin.open()
    assert twin.lost_count == 0
    twin.compare()
    twin.files.kill()


def _no_memory(_file: int) -> None:
    raise MemoryError


def test_what_a_failed_append_left_is_not_taken_for_what_came_in_its_place(tmp_path: Path) -> None:
    """Same place, same size, same time: only that it was cut off, and synced, before tells the one from the other."""
    for seed in range(rounds(8)):
        twin = Twin(tmp_path / str(seed), seed)
        twin.open()
        twin.append([b"first"], keys=None, head=b"", codec=Codec.NONE)
        twin.flush()
        twin.files.fail(3, errno.EIO)  # its items and its bytes are there, the head is not
        with pytest.raises(ArrayError):
            twin.append([b"gone.."] * 2, keys=None, head=b"", codec=Codec.NONE)
        twin.append([b"stays."] * 2, keys=None, head=b"", codec=Codec.NONE)
        twin.power_cut()
        twin.open()
        twin.compare()
        twin.files.kill()


def test_no_page_outlives_the_head_of_an_array_whose_creation_failed_in_between(tmp_path: Path) -> None:
    """The next open finds the head that the disk may not have yet."""
    for seed in range(rounds(4)):
        for at in range(1, 12):
            twin = Twin(tmp_path / f"{seed}-{at}", seed)
            twin.files.fail(at, errno.EIO)
            while twin.array is None:
                try:
                    twin.open()
                except ArrayError:
                    twin.files.kill()
            twin.files.fail(0, 0)
            twin.append([b"one"], keys=None, head=b"", codec=Codec.NONE)
            twin.power_cut()
            twin.open()
            twin.files.kill()
