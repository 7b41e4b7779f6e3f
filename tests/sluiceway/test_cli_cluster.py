"""`sluiceway cluster init`: what it makes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sluiceway.cli import main
from sluiceway.cli.exits import Exit
from sluiceway.store.directory import open_directory


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["cluster", *arguments])
    return result.exit_code, result.output


def test_init_says_what_it_made_and_what_comes_next(tmp_path: Path) -> None:
    code, said = run("init", "--data", str(tmp_path / "data"), "--shards", "8")
    assert code == 0
    assert "has 8 shards" in said and "sluiceway serve --data" in said
    assert (tmp_path / "data" / "shards" / "0007" / "format").exists()


def test_one_shard_is_an_ordinary_folder(tmp_path: Path) -> None:
    code, said = run("init", "--data", str(tmp_path), "--shards", "1")
    assert (code, "ordinary data folder" in said) == (0, True)


@pytest.mark.parametrize("count", ["0", "3", "many", "2048"])
def test_the_number_of_shards_is_a_power_of_two(tmp_path: Path, count: str) -> None:
    code, said = run("init", "--data", str(tmp_path), "--shards", count)
    assert code == Exit.USAGE
    assert "--shards" in said
    assert not list(tmp_path.iterdir())


def test_a_folder_with_data_is_refused(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    code, said = run("init", "--data", str(tmp_path), "--shards", "4")
    assert code == Exit.STORE
    assert "can't be divided" in said and "another folder" in said


def test_the_group_teaches_without_a_command() -> None:
    _code, said = run()
    assert "A shard is a fixed share of all destination names" in said
    assert "init" in said
