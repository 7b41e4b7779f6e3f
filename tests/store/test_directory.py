"""The data folder: one process at a time, a known layout, clear errors."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from sluiceway.store.directory import (
    DirectoryError,
    FormatError,
    LockedError,
    MissingError,
    NoSpaceError,
    NotAFolderError,
    NotWritableError,
    look_at,
    open_directory,
)
from sluiceway.store.engine import put
from sluiceway.store.keys import FORMAT_VERSION, FORMAT_VERSION_MIN, chunk_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_new_folder_gets_its_layout(path: Path) -> None:
    with open_directory(path) as directory:
        assert sorted(entry.name for entry in path.iterdir()) == ["attic", "db", "format", "large", "lock"]
        assert (path / "format").read_text() == f"sluiceway-store {FORMAT_VERSION_MIN}\n"
        assert (directory.database_path, directory.large_path) == (path / "db", path / "large")


def test_parents_are_made_too(tmp_path: Path) -> None:
    with open_directory(tmp_path / "a" / "b" / "c") as directory:
        assert (directory.path / "format").exists()


def test_nobody_else_may_look_into_a_new_folder(path: Path) -> None:
    with open_directory(path):
        assert path.stat().st_mode & 0o077 == 0


def test_a_relative_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_directory(Path("data")):
        assert (tmp_path / "data" / "format").exists()


def test_a_folder_is_found_again_as_it_was_left(path: Path) -> None:
    with open_directory(path) as directory:
        (directory.large_path / "1").write_bytes(b"body")
        engine, _report = directory.open_engine()
        engine.write([put(b"a", b"1")], sync=True)
        engine.close()
    with open_directory(path, create=False) as directory:
        engine, report = directory.open_engine()
        assert report is None
        assert engine.get(b"a") == b"1"
        assert (directory.large_path / "1").read_bytes() == b"body"
        engine.close()


def test_a_folder_that_was_never_finished_is_finished(path: Path) -> None:
    (path / "db").mkdir(parents=True)
    (path / "lock").touch()
    (path / "format.new").write_bytes(b"slu")
    with open_directory(path):
        assert sorted(entry.name for entry in path.iterdir()) == ["attic", "db", "format", "large", "lock"]


def test_a_missing_folder_is_not_made_unless_wanted(path: Path) -> None:
    with pytest.raises(MissingError, match=str(path)):
        open_directory(path, create=False)
    assert not path.exists()


def test_a_folder_in_use_names_the_process_that_uses_it(path: Path) -> None:
    with open_directory(path), pytest.raises(LockedError) as caught:
        open_directory(path)
    assert caught.value.pid == os.getpid()
    assert str(os.getpid()) in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_lock_without_a_name_in_it_is_a_lock(path: Path) -> None:
    """Whoever took it did not get to write who it is."""
    with open_directory(path):
        (path / "lock").write_bytes(b"")
        with pytest.raises(LockedError, match="another process") as caught:
            open_directory(path)
    assert caught.value.pid is None


def test_a_closed_folder_is_free(path: Path) -> None:
    open_directory(path).close()
    assert (path / "lock").read_bytes() == b""
    open_directory(path).close()


def test_closing_twice_leaves_the_lock_of_others_alone(path: Path) -> None:
    first = open_directory(path)
    first.close()
    with open_directory(path):
        first.close()
        with pytest.raises(LockedError):
            open_directory(path)


def test_a_refused_opening_frees_the_lock(path: Path) -> None:
    open_directory(path).close()
    (path / "format").write_text("sluiceway-store 999\n")
    for _ in range(2):
        with pytest.raises(FormatError):
            open_directory(path)


def test_the_lock_of_a_killed_process_is_gone_with_it(path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom sluiceway.store.directory import open_directory\n"
        "opened = open_directory(Path(sys.argv[1]))\nprint('locked', flush=True)\nsys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LockedError) as caught:
            open_directory(path)
        assert caught.value.pid == holder.pid
        holder.send_signal(signal.SIGKILL)
    open_directory(path).close()


def test_a_child_process_does_not_inherit_the_lock(path: Path) -> None:
    directory = open_directory(path)
    child = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"  # its program runs, so the system has closed what it must not have
        directory.close()
        open_directory(path).close()
        child.communicate(b"\n")


@pytest.mark.parametrize(("version", "word"), [(FORMAT_VERSION + 1, "later"), (0, "earlier")])
def test_another_format_names_both_versions(path: Path, version: int, word: str) -> None:
    open_directory(path).close()
    (path / "format").write_text(f"sluiceway-store {version}\n")
    with pytest.raises(FormatError, match=f"format {version},.* formats 1 to {FORMAT_VERSION}: .*{word}"):
        open_directory(path)
    assert (path / "format").read_text() == f"sluiceway-store {version}\n"


@pytest.mark.parametrize("text", [b"", b"something else", b"\xff\xfe\x00", b"sluiceway-store x", b"1" * 100_000])
def test_a_format_file_that_is_not_ours_is_refused_and_kept(path: Path, text: bytes) -> None:
    open_directory(path).close()
    (path / "format").write_bytes(text)
    with pytest.raises(FormatError, match="format"):
        open_directory(path)
    assert (path / "format").read_bytes() == text


def test_a_database_without_a_format_is_none_of_ours(path: Path) -> None:
    (path / "db").mkdir(parents=True)
    (path / "db" / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(FormatError, match="choose another one"):
        open_directory(path)
    assert not (path / "format").exists()


@pytest.mark.parametrize("names", [("notes.txt",), ("a", "b", "c", "d"), (".bashrc", "lost+found")])
def test_a_folder_of_somebody_else_is_refused_and_left_as_it_was(path: Path, names: tuple[str, ...]) -> None:
    path.mkdir()
    for name in names:
        (path / name).write_text("mine")
    for use in (open_directory, look_at):
        with pytest.raises(FormatError, match="is not empty and is no data folder") as caught:
            use(path)
        assert names[0] in str(caught.value)
        assert f"such as {path / 'sluiceway-data'}" in str(caught.value)
    assert "and 1 more" in str(caught.value) if len(names) == 4 else True
    assert {entry.name for entry in path.iterdir()} == set(names)


def test_what_a_file_system_or_a_repository_has_in_a_folder_is_no_obstacle(path: Path) -> None:
    (path / "lost+found").mkdir(parents=True)
    (path / ".gitignore").touch()
    (path / "large").mkdir()  # a disk that is mounted for large bodies
    open_directory(path).close()
    (path / "notes.txt").touch()
    open_directory(path).close()  # it is a data folder, whatever else somebody puts there
    look_at(path)


def test_a_file_in_place_of_the_folder(path: Path) -> None:
    path.write_text("a file")
    with pytest.raises(NotAFolderError, match=str(path)):
        open_directory(path)
    assert path.read_text() == "a file"


def test_a_file_in_place_of_a_parent_is_what_is_named(path: Path) -> None:
    """Not what was to be below it: there is nothing there to move away."""
    path.write_text("a file")
    with pytest.raises(NotAFolderError, match=f"^{path} is not a folder, so the data folder {path}/below/it can't"):
        open_directory(path / "below" / "it")


def test_a_database_that_was_taken_away_is_no_empty_store(path: Path) -> None:
    """An empty one in its place would remove the files of the large bodies, too; who wants that says so."""
    open_directory(path).close()
    (path / "large" / "0000000000000001").write_text("a body")
    shutil.rmtree(path / "db")
    with pytest.raises(MissingError, match=f"{path}/db, which has the messages, is missing") as caught:
        open_directory(path)
    assert f"remove {path}/format" in str(caught.value)
    assert sorted(there.name for there in path.iterdir()) == ["attic", "format", "large", "lock"]
    (path / "format").unlink()
    open_directory(path).close()


def test_large_values_that_were_taken_away_are_not_taken_for_damaged(path: Path) -> None:
    """Consumers would have each of them deleted: it comes too late then to bring the folder back."""
    with open_directory(path) as directory:
        engine, _report = directory.open_engine()
        engine.write([put(chunk_key(1, 0), bytes(200_000))], sync=True)
        engine.close()
    (path / "values").rename(path / "elsewhere")
    for use in (open_directory, look_at):
        with pytest.raises(MissingError, match=f"{path}/values, which has messages of the database, is missing"):
            use(path)
    (path / "elsewhere").rename(path / "values")
    open_directory(path).close()


def test_a_file_in_place_of_a_folder_inside(path: Path) -> None:
    open_directory(path).close()
    shutil.rmtree(path / "large")
    (path / "large").write_text("a file")
    with pytest.raises(NotAFolderError, match="large"):
        open_directory(path)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, NotWritableError),
        (errno.EROFS, NotWritableError),
        (errno.ENOSPC, NoSpaceError),
        (errno.EDQUOT, NoSpaceError),
        (errno.EIO, DirectoryError),
    ],
)
def test_what_the_system_says_becomes_an_error_that_names_the_folder(
    path: Path, number: int, expected: type[DirectoryError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imitated: tests run as root, too, who may write anywhere."""
    real_open = os.open

    def refuse(name: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(name).name == "lock":
            raise OSError(number, os.strerror(number), str(name))
        return real_open(name, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DirectoryError, match=str(path)) as caught:
        open_directory(path)
    assert type(caught.value) is expected
    assert os.strerror(number) in str(caught.value)
    monkeypatch.undo()
    open_directory(path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(path: Path) -> None:
    path.mkdir(mode=0o500)
    with pytest.raises(NotWritableError, match=str(path)):
        open_directory(path)


def test_a_disk_that_is_nearly_full_is_refused_with_figures(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10, 10, 12345))
    with pytest.raises(NoSpaceError, match=r"12\.1 KiB left, 24\.0 MiB are needed to open it\. Free space"):
        open_directory(path)
    monkeypatch.undo()
    open_directory(path).close()


def test_free_bytes_is_what_the_disk_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_directory(path) as directory:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10, 10, 12345))
        assert directory.free_bytes() == 12345


def test_damaged_things_go_to_the_attic(path: Path) -> None:
    with open_directory(path) as directory:
        place = directory.attic_put("m0001", b"damaged")
        assert place is not None
        assert place.parent == path / "attic"
        assert place.read_bytes() == b"damaged"


def test_an_attic_that_cannot_be_written_is_a_clear_error(path: Path) -> None:
    with open_directory(path) as directory:
        (path / "attic").rmdir()
        with pytest.raises(DirectoryError, match=str(path)):
            directory.attic_put("m0001", b"damaged")
