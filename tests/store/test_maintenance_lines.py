"""Lines of an export, by hand or damaged: what is none is refused with the line and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.store.maintenance.check import check
from sluiceway.store.maintenance.lines import (
    BodyLine,
    CursorLine,
    End,
    ExportFormatError,
    Header,
    Line,
    MessageLine,
    SubscriptionLine,
    read_lines,
    write_line,
)
from sluiceway.store.memory import MemoryEngine
from tests.store.exports import (
    END_OF_ONE,
    EVERYTHING,
    HEADER,
    HEADS,
    alive,
    exported,
    imported,
    plain,
    rich_store,
)


def test_the_least_that_a_line_needs() -> None:
    """What a script writes that moves messages from another broker: no sequences, no numbers."""
    store = MemoryEngine()
    lines = ['{"line":"header","export":"sluiceway","format":1}', "", *[plain(body=str(k)) for k in range(3)]]
    imported(store, [line + "\n" for line in [*lines, '{"line":"end","messages":3}']])
    assert [(row[0], row[1], row[2][-3:]) for row in alive(store)] == [
        ("/queue/a", 1, b"\n0\0"), ("/queue/a", 2, b"\n1\0"), ("/queue/a", 3, b"\n2\0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "ends after line 0 without an end line"),
        ([HEADER], "ends after line 1 without an end line: it was cut off"),
        ([HEADER, plain()], r'add {"line":"end","messages":1,"subscriptions":0}'),
        ([plain()], "line 1: an export begins with its header, here is a message line"),
        ([HEADER, HEADER], "line 2: a second header"),
        ([HEADER, END_OF_ONE], "line 2: the end counts 1 messages and 0 subscriptions, there are 0 and 0"),
        ([HEADER, '{"line":"end","messages":0}', plain()], "line 3: something follows the end line"),
        (
            [HEADER.replace(":1,", ":2,", 1)],
            "line 1: the export has format 2, this version of Sluiceway knows format 1",
        ),
        ([HEADER.replace("sluiceway", "other")], "line 1: this is no export of Sluiceway"),
        (["hello"], "line 1: it is no JSON"),
        (["[1]"], "line 1: it is no JSON object"),
        (["[" * 100_000], "line 1: it is (nested too deep|no JSON)"),
        ([b"\xff\xfe"], "line 1: it is no JSON"),
        ([HEADER, '{"line":"letter"}'], "line 2: there are no 'letter' lines, only header, subscription, message"),
        ([HEADER, "{}"], "line 2: 'line' should be text, and is missing"),
        ([HEADER, plain(colour="red")], "line 2: unknown: 'colour'; was it written by a later version"),
        ([HEADER, plain(body=None)], "line 2: 'body' should be text, and is missing"),
        ([HEADER, plain(body=5)], "line 2: 'body' should be text"),
        ([HEADER, plain(body_base64="aGk=")], "line 2: it has both 'body' and 'body_base64'"),
        ([HEADER, plain(body=None, body_base64="a")], "line 2: 'body_base64' is no base64"),
        ([HEADER, plain(body="\ud800")], "line 2: 'body' is no Unicode text"),
        ([HEADER, plain(priority=10)], "line 2: 'priority' should be a whole number from 0 to 9, it is 10"),
        ([HEADER, plain(sequence=True)], "line 2: 'sequence' should be a whole number"),
        ([HEADER, plain(sequence=2**64 - 1), END_OF_ONE], "/queue/a: "),
        ([HEADER, plain(kind="log")], "line 2: 'kind' should be queue or topic, it is 'log'"),
        ([HEADER, plain(kind="topic")], "line 2: '/queue/a' is a queue, the line says otherwise"),
        ([HEADER, plain(destination="/queue/*")], "line 2: '/queue/\\*' is no destination that messages can be in"),
        ([HEADER, plain(destination="")], "line 2: the destination is empty"),
        ([HEADER, plain(dialect=9)], "line 2: a header block of dialect 9 can't be read"),
        ([HEADER, plain(headers="nonsense")], "line 2: a header block of dialect 2 can't be read"),
        ([HEADER, plain(body="\0" * 13)], "line 2: a body of 13 bytes with a NUL"),
        (
            [HEADER, plain(body=None, body_bytes=13), '{"line":"body","base64":"AAAAAAAAAAAAAAAAAA=="}'],
            "line 3: a body of 13 bytes with a NUL",
        ),
        ([HEADER, plain(headers="destination:/queue/a")], "line 2: the message is not persistent"),
        (
            [HEADER, plain(headers="destination:/queue/a\npersistent:true\nmessage-id:1")],
            "line 2: its headers hold some that only a broker writes",
        ),
        ([HEADER, '{"line":"body","base64":""}'], "line 2: a piece of a body, but the message before has no large one"),
        (
            [HEADER, plain(body=None, body_bytes=1), '{"line":"body","base64":"aGk="}'],
            "line 3: the body is longer than the message before says",
        ),
        (
            [
                HEADER,
                '{"line":"cursor","client_id":"c","name":"n","destination":"/topic/t","kind":"topic","front":0}',
            ],
            "line 2: a cursor of the durable subscription 'n' of client 'c', of which there is no line",
        ),
    ],
)
def test_what_is_no_export_is_refused_with_line_and_reason(lines: list[str | bytes], said: str) -> None:
    store = MemoryEngine()
    with pytest.raises(ExportFormatError, match=said):
        imported(store, lines, dry_run=True)
    assert list(store.iterate(*EVERYTHING)) == []


CURSOR = {
    "line": "cursor",
    "client_id": "c",
    "name": "n",
    "destination": "/topic/t",
    "kind": "topic",
    "front": 5,
}
SUBSCRIPTION = '{"line":"subscription","client_id":"c","name":"n","destination":"/topic/t"}'


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"settled": [[1, 2]]}, None),
        ({"settled": [[0, 10**12]]}, "has settled more than 100000000 messages"),
        ({"settled": [[1]]}, "'settled' should be a list of pairs of numbers, there is \\[1\\]"),
        ({"attempts": 5}, "'attempts' should be a list of pairs"),
        ({"front": 2**64}, "'front' should be a whole number"),
    ],
)
def test_cursors_are_judged(fields: dict[str, Any], said: str | None) -> None:
    store = MemoryEngine()
    lines = [HEADER, SUBSCRIPTION, json.dumps(CURSOR | fields), '{"line":"end","messages":0,"subscriptions":1}']
    if said is None:
        imported(store, lines)
        assert dict(check(store, HEADS).fault_counts) == {}
        return
    with pytest.raises(ExportFormatError, match=said):
        imported(store, lines)


def test_messages_do_not_come_behind_cursors() -> None:
    lines = [HEADER, SUBSCRIPTION, json.dumps(CURSOR), plain()]
    with pytest.raises(ExportFormatError, match="line 4: a message behind a cursor"):
        imported(MemoryEngine(), lines)


u64 = st.integers(0, 2**64 - 1)
text = st.text(max_size=20)
LINES: st.SearchStrategy[Line] = st.one_of(
    st.builds(SubscriptionLine, text, text, text, text, u64, u64),
    st.builds(
        MessageLine,
        destination=text,
        topic=st.booleans(),
        priority=st.integers(0, 9),
        sequence=st.none() | u64,
        number=st.none() | u64,
        dialect=st.integers(0, 255),
        block=st.binary(max_size=30) | text.map(str.encode),
        body=st.binary(max_size=30) | text.map(str.encode),
        expires_ms=u64,
        due_ms=u64,
        attempts=st.none() | u64,
    ),
    st.builds(BodyLine, st.binary(max_size=50)),
    st.builds(
        CursorLine,
        text,
        text,
        text,
        st.booleans(),
        st.integers(0, 9),
        u64,
        u64,
        st.lists(st.tuples(u64, u64), max_size=3).map(tuple),
        st.lists(st.tuples(u64, u64), max_size=3).map(tuple),
    ),
)


@given(st.lists(LINES, max_size=5), st.builds(Header, st.none() | text, u64))
def test_lines_round_trip(lines: list[Line], header: Header) -> None:
    messages_count = sum(isinstance(line, MessageLine) for line in lines)
    subscriptions_count = sum(isinstance(line, SubscriptionLine) for line in lines)
    all_lines: list[Line] = [header, *lines, End(messages_count, subscriptions_count)]
    written = [write_line(line) for line in all_lines]
    assert [line for _number, line in read_lines(written)] == all_lines
    assert b"".join(written).count(b"\n") == len(written)


@given(st.data())
def test_damaged_lines_are_refused_and_nothing_worse(data: st.DataObject) -> None:
    """Whatever the bytes: ExportFormatError, or an import that a check finds nothing wrong with."""
    whole = b"".join(exported(rich_store()))
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:place] + data.draw(st.binary(max_size=3)) + whole[place + data.draw(st.integers(0, 3)) :]
    store = MemoryEngine()
    try:
        imported(store, damaged.splitlines(keepends=True))
    except ExportFormatError:
        return
    assert not set(check(store, HEADS).fault_counts) - {"low-numbers"}
