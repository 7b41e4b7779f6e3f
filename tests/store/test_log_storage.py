"""The folder of logs: made by `make`, removed as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.pending_records import PendingRecords
from sluiceway.queues.logs.ports import DiskError
from sluiceway.queues.logs.table import LogError
from sluiceway.store.bigarray import BigArray
from sluiceway.store.bigarray.head import identity_of
from sluiceway.store.log_storage import LogStorage, LogStorageConfig

A = "/log/a.b"


def journal_in(folder: Path | None) -> LogStorage:
    return LogStorage(folder, LogStorageConfig(), now_ms=lambda: 0, boot="boot")


def test_beginning_a_log_touches_no_file(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "logs")
    opened = journal.begin(A)
    assert isinstance(opened.records, PendingRecords)
    assert not (tmp_path / "logs").exists()
    assert opened.make is not None
    opened.make().append_batches([encode([b"x"])])
    journal.close()
    again = journal_in(tmp_path / "logs").open(A)
    assert again.log_id == opened.log_id, "message-ids are made of it"
    assert again.records.next_index == 1
    again.records.close()


def test_a_log_whose_folder_is_there_is_opened(tmp_path: Path) -> None:
    """It could not be opened at the start: what it says of itself counts."""
    journal = journal_in(tmp_path)
    opened = journal.open(A)
    opened.records.append_batches([encode([b"x"])])
    journal.close()
    again = journal_in(tmp_path).begin(A)
    assert (again.make, again.log_id, again.records.next_index) == (None, opened.log_id, 1)
    again.records.close()


def test_a_log_that_somebody_else_has_made_meanwhile_is_not_taken(tmp_path: Path) -> None:
    """Its indexes do not begin with 0, and its message-ids are others."""
    journal, other = journal_in(tmp_path), journal_in(tmp_path)
    opened = journal.begin(A)
    other.open(A)
    other.close()
    assert opened.make is not None
    with pytest.raises(DiskError, match="another program"):
        opened.make()
    assert other.open(A).records.next_index == 0, "nobody holds it"
    other.close()


def test_what_can_not_be_made_can_be_made_later(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "logs")
    opened = journal.begin(A)
    assert opened.make is not None
    (tmp_path / "logs").write_text("no folder")
    with pytest.raises(DiskError):
        opened.make()
    (tmp_path / "logs").unlink()
    assert opened.make().next_index == 0
    journal.close()


def test_a_name_too_long_for_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="too long"):
        journal_in(tmp_path).begin("/log/" + "ü" * 100)


@pytest.mark.parametrize("temporary", [False, True])
def test_a_removed_log_leaves_nothing(tmp_path: Path, temporary: bool) -> None:
    journal = journal_in(None if temporary else tmp_path)
    opened = journal.open(A)
    opened.records.append_batches([encode([b"x"])])
    opened.records.close()
    journal.remove(A)
    assert list(journal.folder.iterdir()) == []
    assert journal.names() == []
    again = journal.open(A)
    assert (again.records.next_index, again.log_id != opened.log_id) == (0, True)
    journal.close()
    assert journal.folder.exists() is not temporary


def test_a_log_that_was_never_made_is_removed(tmp_path: Path) -> None:
    journal_in(tmp_path).remove(A)
    assert list(tmp_path.iterdir()) == []


def test_a_removal_that_was_interrupted_is_ended_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as anybody sees, the log is gone at once; what is left of its files is named."""
    journal = journal_in(tmp_path)
    journal.open(A).records.close()

    def fails(_path: Path) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fails)
        with pytest.raises(DiskError, match="is deleted, but its files still take room"):
            journal.remove(A)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("log.removed-")
    assert journal_in(tmp_path).names() == []
    assert list(tmp_path.iterdir()) == []


def test_what_lies_there_besides_is_left_alone(tmp_path: Path) -> None:
    """Also a folder that no log could have made."""
    for name in ("notes", "a b", "x.y"):
        (tmp_path / name).mkdir()
    assert journal_in(tmp_path).names() == ["/log/notes"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b", "notes", "x.y"]


def test_a_log_has_an_identity_in_its_head_for_ever(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    log_id = journal.open(A).log_id
    journal.close()
    assert identity_of((journal.folder_of(A) / "head").read_bytes()) == log_id
    assert [path.name for path in journal.folder_of(A).iterdir() if path.name.startswith("id")] == []
    again = journal_in(tmp_path)
    assert again.open(A).log_id == log_id
    again.close()


@pytest.mark.parametrize(("kept", "is_taken"), [("00c0ffee0000", True), (None, False), ("no name!\n", False)])
def test_a_log_of_an_earlier_version_gets_its_identity_when_it_is_opened(
    tmp_path: Path, kept: str | None, is_taken: bool
) -> None:
    """That in the file beside it, of which its message-ids were made; once, before anybody is told."""
    folder = journal_in(tmp_path).folder_of(A)
    BigArray.open(folder, boot_id="boot").close()
    assert identity_of((folder / "head").read_bytes()) == ""
    if kept is not None:
        (folder / "id").write_text(kept)
    journal = journal_in(tmp_path)
    log_id = journal.open(A).log_id
    assert (log_id == kept) is is_taken
    assert identity_of((folder / "head").read_bytes()) == log_id
    journal.close()
    (folder / "id").unlink(missing_ok=True)
    again = journal_in(tmp_path)
    assert again.open(A).log_id == log_id
    again.close()
