"""A folder that may be a disk of its own is known again, wherever it lies; another one in its place is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluiceway.store.directory import LARGE, LOGS, MissingError, look_at, open_directory
from sluiceway.store.marks import MARK

FOLDERS = (LARGE, LOGS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def marked(path: Path) -> None:
    """Both folders have something."""
    with open_directory(path) as directory:
        for name in FOLDERS:
            (path / name).mkdir(exist_ok=True)
            directory.marked(name).before_writing()
            (path / name / "a file").write_text("something")


def test_a_folder_with_nothing_in_it_has_no_mark(path: Path) -> None:
    """So a disk may be mounted there as long as nothing is missed."""
    open_directory(path).close()
    assert not (path / "marks").exists() and not (path / LARGE / MARK).exists()


def test_marked_folders_are_known_again(path: Path) -> None:
    marked(path)
    before = (path / "marks").read_text()
    marked(path)
    assert (path / "marks").read_text() == before
    assert len(set(before.split())) == 4, "each has a name of its own"
    look_at(path)


@pytest.mark.parametrize("name", FOLDERS)
def test_an_empty_mount_point_is_refused_until_the_disk_is_back(path: Path, name: str) -> None:
    marked(path)
    (path / name).rename(path / "elsewhere")
    (path / name).mkdir()
    for use in (open_directory, look_at):
        with pytest.raises(MissingError, match=rf"{path}/{name}, which has .* has no mark: .* Mount the disk"):
            use(path)
    assert not list((path / name).iterdir())
    (path / name).rmdir()
    (path / "elsewhere").rename(path / name)
    marked(path)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_missing_is_not_made_anew(path: Path, name: str) -> None:
    marked(path)
    shutil.rmtree(path / name)
    with pytest.raises(MissingError, match=f"{path}/{name}, which has .* is missing: "):
        open_directory(path)
    assert not (path / name).exists()


def test_the_disk_of_another_broker_is_refused(path: Path, tmp_path: Path) -> None:
    marked(path)
    marked(tmp_path / "other")
    shutil.rmtree(path / LARGE)
    shutil.copytree(tmp_path / "other" / LARGE, path / LARGE)
    with pytest.raises(MissingError, match="has the mark of another one"):
        open_directory(path)


def test_an_empty_mark_says_that_what_was_there_is_lost(path: Path) -> None:
    marked(path)
    shutil.rmtree(path / LARGE)
    (path / LARGE).mkdir()
    with pytest.raises(MissingError, match=f"make an empty file {path}/{LARGE}/{MARK}"):
        open_directory(path)
    (path / LARGE / MARK).touch()
    marked(path)
    assert (path / LARGE / MARK).read_text().strip() in (path / "marks").read_text()
    (path / LARGE / MARK).unlink()
    with pytest.raises(MissingError):
        open_directory(path)


def test_a_copy_of_the_whole_folder_is_as_good(path: Path, tmp_path: Path) -> None:
    marked(path)
    shutil.copytree(path, tmp_path / "copy")
    marked(tmp_path / "copy")


@pytest.mark.parametrize("left", ["", "half a na", "0123456789abcdef\n"])
def test_a_crash_before_the_data_folder_knows_of_a_mark_costs_nothing(path: Path, left: str) -> None:
    open_directory(path).close()
    (path / LARGE / MARK).write_text(left)
    marked(path)
    name = (path / LARGE / MARK).read_text().strip()
    assert f"{LARGE} {name}\n" in (path / "marks").read_text()
    assert name == left.strip() or len(left) != 17
    look_at(path)


def test_another_folder_in_the_midst_of_a_run_is_not_written_to(path: Path) -> None:
    """As when a disk is unmounted under a broker."""
    with open_directory(path) as directory:
        folder = directory.marked(LARGE)
        folder.before_writing()
        (path / LARGE).rename(path / "elsewhere")
        with pytest.raises(FileNotFoundError):
            folder.before_writing()
        (path / LARGE).mkdir()
        with pytest.raises(OSError, match="another folder than at the start"):
            folder.before_writing()
        assert not list((path / LARGE).iterdir())
        (path / LARGE).rmdir()
        (path / "elsewhere").rename(path / LARGE)
        folder.before_writing()
