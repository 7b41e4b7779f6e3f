"""The data folder of several shards: made once, and refused in words where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.store.directory import DirectoryError, FormatError, open_directory
from sluiceway.store.shard_folders import HasDataError, look_for_shards, make_shards


def test_the_file_says_what_the_document_says(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "data", 4)
    assert made is not None
    text = (tmp_path / "data" / "format").read_text()
    assert text == f"sluiceway-cluster 1\nshards 4\ntoken {made.token.decode()}\n"
    assert [folder.name for folder in made] == ["0000", "0001", "0002", "0003"]
    assert all((folder / "format").read_text() == "sluiceway-store 1\n" for folder in made)
    assert look_for_shards(tmp_path / "data") == made


def test_made_again_it_is_the_same(tmp_path: Path) -> None:
    assert make_shards(tmp_path, 2) == make_shards(tmp_path, 2)


def test_an_interrupted_making_is_finished_by_the_next(tmp_path: Path) -> None:
    make_shards(tmp_path, 2)
    (tmp_path / "format").unlink()
    assert look_for_shards(tmp_path) is None
    assert make_shards(tmp_path, 2) is not None


def test_one_shard_is_an_ordinary_folder_which_may_have_data(tmp_path: Path) -> None:
    assert make_shards(tmp_path, 1) is None
    assert make_shards(tmp_path, 1) is None
    assert (tmp_path / "format").read_text() == "sluiceway-store 1\n"


def test_a_folder_with_data_is_not_divided(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    with pytest.raises(HasDataError, match="can't be divided"):
        make_shards(tmp_path, 4)


@pytest.mark.parametrize("count", [1, 8])
def test_the_number_of_shards_does_not_change(tmp_path: Path, count: int) -> None:
    make_shards(tmp_path, 4)
    with pytest.raises(HasDataError, match="has 4 shards already"):
        make_shards(tmp_path, count)


@pytest.mark.parametrize("count", [0, -4, 3, 33, 2048])
def test_the_number_of_shards_is_a_power_of_two(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        make_shards(tmp_path, count)


@pytest.mark.parametrize("said", ["shards 3\n", "shards 1\n", "shards many\n", "shards 4096\n", ""])
def test_a_wrong_number_is_refused_in_words(tmp_path: Path, said: str) -> None:
    make_shards(tmp_path, 4)
    (tmp_path / "format").write_text(f"sluiceway-cluster 1\n{said}token 00000000\n")
    with pytest.raises(FormatError, match="can't read"):
        look_for_shards(tmp_path)


def test_a_later_version_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("sluiceway-cluster 2\nshards 4\ntoken 00000000\n")
    with pytest.raises(FormatError, match="Run the version that made the folder"):
        look_for_shards(tmp_path)


def test_an_earlier_version_refuses_the_folder(tmp_path: Path) -> None:
    """`open_directory` is what earlier versions do."""
    make_shards(tmp_path, 2)
    with pytest.raises(FormatError):
        open_directory(tmp_path)


def test_a_file_that_can_not_be_read_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "format").mkdir()
    with pytest.raises(DirectoryError, match="can't be used"):
        look_for_shards(tmp_path)
