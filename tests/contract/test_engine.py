"""What every engine promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.store.engine import DELETE, PUT, Change, Engine, EngineClosedError, delete, delete_range, put
from tests.contract.engines import (
    Maker,
    MakesFaulty,
    MakesFaultyValueLogs,
    MakesLevelDb,
    MakesMemory,
    MakesPostgresql,
    MakesValueLogs,
)
from tests.how_often import rounds

KINDS = ("leveldb", "memory", "faulty", "values", "faulty-values", "postgresql")
LAST = b"\xff" * 8


def maker_of(kind: str, folder: Path) -> Maker:
    if kind == "leveldb":
        return MakesLevelDb(folder)
    if kind == "postgresql":
        return MakesPostgresql()
    if kind == "values":
        return MakesValueLogs(folder)
    if kind == "faulty-values":
        return MakesFaultyValueLogs()
    return MakesMemory() if kind == "memory" else MakesFaulty()


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return maker_of(request.param, tmp_path)


@pytest.fixture
def engine(maker: Maker) -> Iterator[Engine]:
    made = maker.open()
    yield made
    made.close()


def fill(engine: Engine, *keys: bytes) -> None:
    engine.write([put(key, b"value of " + key) for key in keys], sync=False)


def keys_of(engine: Engine, start: bytes = b"", stop: bytes = LAST) -> list[bytes]:
    return list(engine.iterate_keys(start, stop))


def test_a_value_is_read_as_it_was_written(engine: Engine) -> None:
    engine.write([put(b"key", b"value")], sync=True)
    assert engine.get(b"key") == b"value"


def test_a_key_that_was_never_put_has_no_value(engine: Engine) -> None:
    assert engine.get(b"nothing") is None


def test_an_empty_value_is_a_value(engine: Engine) -> None:
    engine.write([put(b"key", b"")], sync=False)
    assert engine.get(b"key") == b""
    assert list(engine.iterate(b"", LAST)) == [(b"key", b"")]


def test_the_empty_key_is_a_key_and_the_first(engine: Engine) -> None:
    fill(engine, b"a", b"")
    assert keys_of(engine) == [b"", b"a"]
    assert [key for key, _value in engine.iterate(b"", LAST, reverse=True)] == [b"a", b""]


def test_values_of_megabytes(engine: Engine) -> None:
    value = bytes(range(256)) * 4096 * 5
    engine.write([put(b"key", value), put(b"other", value[1:])], sync=True)
    assert engine.get(b"key") == value
    assert [len(value) for _key, value in engine.iterate(b"", LAST)] == [len(value), len(value) - 1]


def test_the_last_put_of_a_key_counts(engine: Engine) -> None:
    engine.write([put(b"key", b"1"), put(b"key", b"2")], sync=False)
    assert engine.get(b"key") == b"2"
    engine.write([put(b"key", b"3")], sync=False)
    assert engine.get(b"key") == b"3"
    assert keys_of(engine) == [b"key"]


def test_a_deleted_key_has_no_value(engine: Engine) -> None:
    fill(engine, b"a", b"b")
    engine.write([delete(b"a"), delete(b"never there")], sync=False)
    assert engine.get(b"a") is None
    assert keys_of(engine) == [b"b"]


def test_changes_of_a_batch_apply_in_order(engine: Engine) -> None:
    fill(engine, b"a")
    engine.write([delete(b"a"), put(b"a", b"again"), put(b"b", b"1"), delete(b"b")], sync=False)
    assert list(engine.iterate(b"", LAST)) == [(b"a", b"again")]


def test_keys_are_in_bytewise_order(engine: Engine) -> None:
    keys = [b"", b"\x00", b"\x00\x00", b"\x01", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff"]
    fill(engine, *reversed(keys))
    assert keys_of(engine) == sorted(keys)
    assert [key for key, _value in engine.iterate(b"", LAST, reverse=True)] == sorted(keys, reverse=True)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (b"b", b"d", [b"b", b"c"]),
        (b"b", b"c\x00", [b"b", b"c"]),
        (b"a\x00", b"e", [b"b", b"c", b"d"]),
        (b"a", b"b", [b"a"]),
        (b"d", b"z", [b"d"]),
        (b"b", b"b", []),
        (b"d", b"b", []),
        (b"x", b"z", []),
        (b"", b"a", []),
    ],
)
def test_a_range_has_its_start_and_not_its_stop(
    engine: Engine, start: bytes, stop: bytes, expected: list[bytes]
) -> None:
    """Upwards, downwards, without values."""
    fill(engine, b"a", b"b", b"c", b"d")
    assert [key for key, _value in engine.iterate(start, stop)] == expected
    assert [key for key, _value in engine.iterate(start, stop, reverse=True)] == expected[::-1]
    assert keys_of(engine, start, stop) == expected


def test_an_empty_engine_has_empty_ranges(engine: Engine) -> None:
    assert keys_of(engine) == []
    assert list(engine.iterate(b"", LAST, reverse=True)) == []


def test_iterations_bring_values(engine: Engine) -> None:
    fill(engine, b"a", b"b")
    expected = [(b"a", b"value of a"), (b"b", b"value of b")]
    assert list(engine.iterate(b"", LAST)) == expected
    assert list(engine.iterate(b"", LAST, reverse=True)) == expected[::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_an_iteration_shows_what_was_there_when_it_was_asked_for(engine: Engine, reverse: bool) -> None:
    """Whatever is written before its first step or between two."""
    fill(engine, b"a", b"c", b"e")
    steps = engine.iterate(b"", LAST, reverse=reverse)
    engine.write([put(b"b", b"new"), put(b"c", b"changed"), delete(b"e")], sync=False)
    first = next(steps)
    engine.write([delete_range(b"", LAST), put(b"d", b"new")], sync=False)
    expected = [(b"a", b"value of a"), (b"c", b"value of c"), (b"e", b"value of e")]
    assert [first, *steps] == (expected[::-1] if reverse else expected)
    assert keys_of(engine) == [b"d"]


def test_an_iteration_without_values_is_of_one_moment_too(engine: Engine) -> None:
    fill(engine, b"a", b"c")
    steps = engine.iterate_keys(b"", LAST)
    engine.write([put(b"b", b"new"), delete(b"c")], sync=False)
    assert list(steps) == [b"a", b"c"]


def test_several_iterations_go_on_independently(engine: Engine) -> None:
    fill(engine, b"a", b"b")
    old = engine.iterate(b"", LAST)
    assert next(old)[0] == b"a"
    engine.write([delete(b"b")], sync=False)
    new = engine.iterate(b"", LAST)
    engine.write([delete(b"a")], sync=False)
    assert [key for key, _value in old] == [b"b"]
    assert [key for key, _value in new] == [b"a"]


def test_an_iteration_that_is_dropped_half_way_hurts_nobody(engine: Engine) -> None:
    fill(engine, b"a", b"b")
    steps = engine.iterate(b"", LAST)
    next(steps)
    del steps
    fill(engine, b"c")
    assert keys_of(engine) == [b"a", b"b", b"c"]


def test_delete_range_takes_the_start_and_leaves_the_stop(engine: Engine) -> None:
    fill(engine, b"a", b"b", b"c", b"d")
    engine.write([delete_range(b"b", b"d")], sync=False)
    assert keys_of(engine) == [b"a", b"d"]


def test_delete_range_takes_what_the_same_batch_put_before_and_leaves_what_it_puts_after(engine: Engine) -> None:
    fill(engine, b"b1")
    engine.write(
        [put(b"b2", b"before"), put(b"c", b"outside"), delete_range(b"b", b"c"), put(b"b3", b"after")], sync=False
    )
    assert keys_of(engine) == [b"b3", b"c"]


def test_a_key_that_is_put_again_after_delete_range_is_there(engine: Engine) -> None:
    fill(engine, b"b")
    engine.write([delete_range(b"a", b"c"), put(b"b", b"again")], sync=False)
    assert list(engine.iterate(b"", LAST)) == [(b"b", b"again")]


@pytest.mark.parametrize(("start", "stop"), [(b"b", b"b"), (b"c", b"a"), (b"x", b"z")])
def test_delete_range_of_nothing_deletes_nothing(engine: Engine, start: bytes, stop: bytes) -> None:
    fill(engine, b"a", b"b", b"c")
    engine.write([delete_range(start, stop)], sync=False)
    assert keys_of(engine) == [b"a", b"b", b"c"]


def test_many_keys(engine: Engine) -> None:
    """Put in any order, half of them deleted one by one, the rest as a range."""
    keys = [(place * 7919 % 4_000).to_bytes(8, "big") for place in range(4_000)]
    for at in range(0, len(keys), 1000):
        fill(engine, *keys[at : at + 5000])
    assert keys_of(engine) == sorted(keys)
    engine.write([delete(key) for key in sorted(keys)[::2]], sync=False)
    assert keys_of(engine) == sorted(keys)[1::2]
    engine.write([delete_range((100).to_bytes(8, "big"), LAST)], sync=True)
    assert keys_of(engine) == [place.to_bytes(8, "big") for place in range(1, 100, 2)]


def test_an_empty_batch_changes_nothing(engine: Engine) -> None:
    fill(engine, b"a")
    engine.write([], sync=False)
    engine.write([], sync=True)
    assert keys_of(engine) == [b"a"]


def test_a_batch_that_was_written_twice_is_there_once(engine: Engine) -> None:
    """So a batch that may have failed is simply written again."""
    fill(engine, b"a", b"b")
    batch = [delete_range(b"a", b"b"), put(b"c", b"1"), delete(b"b"), put(b"d", b"2")]
    engine.write(batch, sync=False)
    engine.write(batch, sync=False)
    assert list(engine.iterate(b"", LAST)) == [(b"c", b"1"), (b"d", b"2")]


def test_the_caller_may_reuse_its_list_of_changes(maker: Maker) -> None:
    engine = maker.open()
    batch = [put(b"a", b"1")]
    engine.write(batch, sync=False)
    batch.clear()
    engine.write([], sync=True)
    assert engine.get(b"a") == b"1"
    engine = maker.reopen(engine) or engine
    engine.close()


def test_compacting_keeps_what_is_there(engine: Engine) -> None:
    fill(engine, b"a", b"b", b"c")
    engine.write([delete(b"b")], sync=True)
    engine.compact(b"", LAST)
    assert keys_of(engine) == [b"a", b"c"]


def test_compacting_gives_back_what_was_deleted(engine: Engine) -> None:
    engine.write([put(b"key %d" % place, bytes(100_000)) for place in range(20)], sync=True)
    engine.compact(b"", LAST)  # as it would be if they had been there for a while
    assert engine.size_bytes() > 2_000_000
    engine.write([delete_range(b"", LAST)], sync=True)
    engine.compact(b"", LAST)
    assert engine.size_bytes() < 1_000_000


def test_what_was_written_is_there_after_closing_and_opening(maker: Maker) -> None:
    """Synced or not. An engine that keeps nothing says so by leaving nothing to open."""
    engine = maker.open()
    engine.write([put(b"a", b"1"), put(b"b", b"2")], sync=True)
    engine.write([put(b"c", b"3"), delete(b"a")], sync=False)
    again = maker.reopen(engine)
    if again is not None:
        assert list(again.iterate(b"", LAST)) == [(b"b", b"2"), (b"c", b"3")]
        again.write([put(b"d", b"4")], sync=True)
        assert again.get(b"d") == b"4"
        again.close()


def test_closing_twice_is_nothing(maker: Maker) -> None:
    engine = maker.open()
    engine.close()
    engine.close()


def test_a_closed_engine_does_nothing_more(maker: Maker) -> None:
    engine = maker.open()
    fill(engine, b"a")
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.get(b"a")
    with pytest.raises(EngineClosedError):
        list(engine.iterate(b"", LAST))
    with pytest.raises(EngineClosedError):
        list(engine.iterate_keys(b"", LAST))
    with pytest.raises(EngineClosedError):
        engine.write([put(b"a", b"1")], sync=False)
    with pytest.raises(EngineClosedError):
        engine.compact(b"", LAST)
    with pytest.raises(EngineClosedError):
        engine.size_bytes()


@pytest.mark.parametrize("reverse", [False, True])
def test_closing_ends_open_iterations(maker: Maker, reverse: bool) -> None:
    """Those that began, those that didn't, and those that a write overtook."""
    engine = maker.open()
    fill(engine, b"a", b"b", b"c")
    overtaken = engine.iterate(b"", LAST, reverse=reverse)
    next(overtaken)
    fill(engine, b"d")
    begun = engine.iterate(b"", LAST, reverse=reverse)
    next(begun)
    waiting = engine.iterate_keys(b"", LAST)
    engine.close()
    for steps in (overtaken, begun, waiting):
        with pytest.raises(EngineClosedError):
            next(steps)


KEYS = st.binary(max_size=3)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(put, KEYS, st.binary(max_size=4)),
    st.builds(delete, KEYS),
    st.builds(delete_range, KEYS, KEYS),
)


def model(values: dict[bytes, bytes], changes: Sequence[Change]) -> None:
    for kind, key, value in changes:
        if kind == PUT:
            values[key] = value
        elif kind == DELETE:
            values.pop(key, None)
        else:
            for gone in [there for there in values if key <= there < value]:
                del values[gone]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=rounds(20))
@given(batches=st.lists(st.tuples(st.lists(CHANGES, max_size=60), st.booleans()), max_size=6), start=KEYS, stop=KEYS)
def test_an_engine_is_a_dict_in_order(
    kind: str, batches: list[tuple[list[Change], bool]], start: bytes, stop: bytes
) -> None:
    """Whatever is written: all it shows is what a dict would hold, and iterations are of their moment."""
    with TemporaryDirectory() as folder:
        maker = maker_of(kind, Path(folder))
        engine = maker.open()
        values: dict[bytes, bytes] = {}
        open_ones: list[tuple[Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = []
        for changes, sync in batches:
            before = sorted(item for item in values.items() if start <= item[0] < stop)
            open_ones.append((engine.iterate(start, stop), before))
            open_ones.append((engine.iterate(start, stop, reverse=True), before[::-1]))
            engine.write(changes, sync=sync)
            model(values, changes)
            everything = sorted(values.items())
            assert list(engine.iterate(b"", LAST)) == everything
            assert list(engine.iterate(b"", LAST, reverse=True)) == everything[::-1]
            assert all(engine.get(key) == values.get(key) for _kind, key, _value in changes)
        for steps, expected in open_ones:
            assert list(steps) == expected
        again = maker.reopen(engine)
        if again is not None:
            assert list(again.iterate(b"", LAST)) == sorted(values.items())
            again.close()
