"""Folders that Sluiceway makes are its user's alone, whatever the umask; those that are there keep their mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluiceway.store.folders import make_private_folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_missing_parents_are_as_private_as_the_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_private_folder(tmp_path / "data" / "demo" / "store")
    finally:
        os.umask(before)
    assert [mode(tmp_path / "data" / name) for name in (".", "demo", "demo/store")] == [0o700] * 3


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o750)
    (tmp_path / "shared").chmod(0o750)
    make_private_folder(tmp_path / "shared")
    make_private_folder(tmp_path / "shared" / "below")
    assert (mode(tmp_path / "shared"), mode(tmp_path / "shared" / "below")) == (0o750, 0o700)


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "below")
