"""The identity of an array: given once, on the disk before anybody is told, left alone by all that comes later."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.store.bigarray import BigArray
from sluiceway.store.bigarray.head import IDENTITY, IDENTITY_OFFSET, decode_identity, encode_identity, identity_of


def identity_on_disk(folder: Path) -> str:
    return identity_of((folder / "head").read_bytes())


def test_an_array_gets_the_identity_that_it_is_made_with_and_keeps_it(tmp_path: Path) -> None:
    with BigArray.open(tmp_path, boot_id="b", identity="first") as array:
        assert (array.identity, identity_on_disk(tmp_path)) == ("first", "first")
        array.append(b"x")
    with BigArray.open(tmp_path, boot_id="b", identity="second") as array:
        array.append(b"y")
        array.remove_to(1)
        array.flush()
        assert array.identity == "first"
    with BigArray.open(tmp_path, boot_id="b", read_only=True) as array:
        assert array.identity == "first"
    assert identity_on_disk(tmp_path) == "first"


def test_an_array_without_one_gets_one_later_and_nothing_else_changes(tmp_path: Path) -> None:
    with BigArray.open(tmp_path, boot_id="b") as array:
        array.append(b"x")
        assert array.identity == ""
    with BigArray.open(tmp_path, boot_id="b", read_only=True, identity="given") as array:
        assert array.identity == "", "who only reads changes nothing"
    with BigArray.open(tmp_path, boot_id="b", identity="given") as array:
        assert (array.identity, bytes(array.batch_of(0).value(0))) == ("given", b"x")
    assert identity_on_disk(tmp_path) == "given"


@pytest.mark.parametrize("kept_bytes", range(0, IDENTITY.size, 5))
def test_one_that_was_torn_when_it_was_written_is_none(tmp_path: Path, kept_bytes: int) -> None:
    """Nobody was told of it."""
    BigArray.open(tmp_path, boot_id="b").close()
    head = bytearray((tmp_path / "head").read_bytes())
    head[IDENTITY_OFFSET : IDENTITY_OFFSET + kept_bytes] = encode_identity("torn")[:kept_bytes]
    (tmp_path / "head").write_bytes(head)
    with BigArray.open(tmp_path, boot_id="b", identity="whole") as array:
        assert array.identity == "whole"
    assert identity_on_disk(tmp_path) == "whole"


@pytest.mark.parametrize("identity", ["a b", "ü", "x" * 65, "a-b", "\0"])
def test_what_can_be_no_part_of_a_message_id_is_refused(tmp_path: Path, identity: str) -> None:
    with pytest.raises(ValueError, match="letters and digits"):
        BigArray.open(tmp_path, boot_id="b", identity=identity)
    assert decode_identity(bytes(IDENTITY.size)) == ""
