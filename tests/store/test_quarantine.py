"""The attic keeps what is newest, within its bounds."""

from __future__ import annotations

from pathlib import Path

from sluiceway.store.quarantine import Quarantine


def contents(attic: Quarantine) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in attic.files()]


def test_things_are_kept_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """And a name that comes twice is there twice."""
    attic = Quarantine(tmp_path)
    place = attic.put("chunk", b"1")
    attic.put("another", b"2")
    attic.put("chunk", b"3")
    assert place == tmp_path / "000001-chunk"
    assert contents(attic) == [("000001-chunk", b"1"), ("000002-another", b"2"), ("000003-chunk", b"3")]


def test_numbers_go_on_in_the_next_process(tmp_path: Path) -> None:
    Quarantine(tmp_path).put("a", b"1")
    Quarantine(tmp_path).put("b", b"2")
    assert [name for name, _data in contents(Quarantine(tmp_path))] == ["000001-a", "000002-b"]


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    attic = Quarantine(tmp_path, count_max=2)
    for name in ("a", "b", "c"):
        attic.put(name, b"")
    assert [name for name, _data in contents(attic)] == ["000002-b", "000003-c"]


def test_the_oldest_go_when_there_is_too_much(tmp_path: Path) -> None:
    attic = Quarantine(tmp_path, bytes_max=10)
    for name in ("a", "b", "c"):
        attic.put(name, bytes(5))
    assert [name for name, _data in contents(attic)] == ["000002-b", "000003-c"]
    attic.put("all of it", bytes(10))
    assert [name for name, _data in contents(attic)] == ["000004-all_of_it"]


def test_what_is_larger_than_the_attic_is_refused_and_displaces_nothing(tmp_path: Path) -> None:
    attic = Quarantine(tmp_path, bytes_max=10)
    attic.put("a", bytes(10))
    assert attic.put("b", bytes(11)) is None
    assert [name for name, _data in contents(attic)] == ["000001-a"]


def test_any_name_becomes_a_file_name(tmp_path: Path) -> None:
    attic = Quarantine(tmp_path)
    for name in ("../../escape", "a/b\0c", "", "n" * 500, "."):
        place = attic.put(name, b"")
        assert place is not None
        assert place.parent == tmp_path
        assert place.is_file()
    assert len(attic.files()) == 5


def test_a_file_is_adopted_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "attic").mkdir()
    attic = Quarantine(tmp_path / "attic", bytes_max=10)
    for name, size_bytes in (("small", 3), ("large", 11)):
        (tmp_path / name).write_bytes(bytes(size_bytes))
    assert attic.adopt(tmp_path / "small") == tmp_path / "attic" / "000001-small"
    assert not (tmp_path / "small").exists()
    assert attic.adopt(tmp_path / "large") is None
    assert (tmp_path / "large").exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(bytes(100))
    attic = Quarantine(tmp_path, bytes_max=10, count_max=1)
    attic.put("a", b"")
    attic.put("b", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002-b", "notes"]
