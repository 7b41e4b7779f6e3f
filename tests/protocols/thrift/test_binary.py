"""Thrift's binary protocol: what is read is what was written, and nothing but FormatError for anything else."""

from __future__ import annotations

from typing import Any

import pytest
import thriftpy2
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.thrift.binary import (
    Field,
    Fields,
    FormatError,
    Kind,
    MessageType,
    message,
    read_head,
    read_struct,
    reply,
)
from sluiceway.protocols.thrift.queue_service import CALLS, ErrorCode, ResultCode
from tests.architecture.sources import ROOT

IDL = ROOT / "sluiceway" / "thrift" / "queue_service.thrift"
BINARY = 18
"""What thriftpy2 calls a STRING that is not text."""
I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)


def interface() -> Any:
    return thriftpy2.load(str(IDL), module_name="queue_service_thrift")


def fields_of(spec: Any) -> Any:
    """The fields of a struct as thriftpy2 reads the interface, in the form of our tables."""
    found = {}
    for number, (kind, name, *more, required) in spec.items():
        inner = fields_of(more[0].thrift_spec) if kind == Kind.STRUCT else None
        found[number] = (name, kind, required, inner)
    return found


def told(fields: Fields) -> Any:
    return {
        number: (field.name, _kind(field), field.required, None if field.fields is None else told(field.fields))
        for number, field in fields.items()
    }


def _kind(field: Field) -> int:
    return BINARY if field.kind == Kind.STRING and not field.is_text else int(field.kind)


def test_the_tables_are_those_of_the_interface() -> None:
    service = interface().QueueService
    assert set(service.thrift_services) == set(CALLS)
    for name, call in CALLS.items():
        (argument,) = getattr(service, f"{name}_args").thrift_spec.values()
        assert argument[1] == call.argument
        assert told(call.takes) == fields_of(argument[2].thrift_spec)
        assert told(call.gives) == fields_of(getattr(service, f"{name}_result").thrift_spec[0][2].thrift_spec)
    assert {code.name: code.value for code in ErrorCode} == interface().ErrorCode._NAMES_TO_VALUES
    assert {code.name: code.value for code in ResultCode} == interface().ResultCode._NAMES_TO_VALUES


@given(st.binary(), st.text(max_size=40), st.one_of(st.none(), st.text()), I64, I32, st.integers(0, 2**31 - 1))
def test_what_was_written_is_read(
    item: bytes, topic: str, group: str | None, index: int, fetch_bytes: int, sequence_id: int
) -> None:
    call = CALLS["consume"]
    values = {"topic": topic, "fanoutId": group, "startIndex": index, "maxFetchSize": fetch_bytes}
    wire = message(MessageType.CALL, "consume", sequence_id, call.arguments, {call.argument: values})
    head = read_head(wire)
    assert (head.name, head.kind, head.sequence_id) == ("consume", MessageType.CALL, sequence_id)
    found = read_struct(wire, head.place, call.arguments)[call.argument]
    assert found == {name: value for name, value in values.items() if value is not None}
    produce = CALLS["produce"]
    wire = message(MessageType.CALL, "produce", 1, produce.arguments, {produce.argument: {"item": item, "topic": "a"}})
    assert read_struct(wire, read_head(wire).place, produce.arguments)[produce.argument]["item"] == item


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused_in_words(data: bytes) -> None:
    for call in CALLS.values():
        try:
            read_struct(data, read_head(data).place, call.arguments)
        except FormatError as error:
            assert str(error)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_byte_that_is_wrong_is_refused_or_read(place: int, byte: int) -> None:
    call = CALLS["produce"]
    wire = bytearray(
        message(MessageType.CALL, "produce", 7, call.arguments, {call.argument: {"item": b"x" * 90, "topic": "orders"}})
    )
    wire[place % len(wire)] = byte
    try:
        head = read_head(wire)
        read_struct(wire, head.place, call.arguments)
    except FormatError as error:
        assert str(error)


def test_a_head_without_a_version_is_read() -> None:
    head = read_head(b"\0\0\0\7getSize\1\0\0\0\5")
    assert (head.name, head.kind, head.sequence_id) == ("getSize", MessageType.CALL, 5)


@pytest.mark.parametrize(
    ("struct", "words"),
    [
        (b"\x0f\0\x09\x03\0\0\0\1\0\0", "field 9 has the type 15, which is not expected there"),
        (b"\x08\0\x09\0\0\0\1" * 33, "more than 32 fields"),
        (b"\x0b\0\2\xff\xff\xff\xff", "it ends at byte"),
        (b"\0", "the required field item is missing"),
    ],
)
def test_what_has_no_bound_is_refused(struct: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_struct(struct, 0, CALLS["produce"].takes)


def test_a_number_or_a_text_that_is_not_known_is_passed_over() -> None:
    newer = {**CALLS["getSize"].takes, 9: Field("more", Kind.I64), 10: Field("text", Kind.STRING)}
    values = {"topic": "a", "more": 1, "text": "b"}
    wire = message(
        MessageType.CALL,
        "getSize",
        1,
        {1: Field("getSizeRequest", Kind.STRUCT, fields=newer)},
        {"getSizeRequest": values},
    )
    found = read_struct(wire, read_head(wire).place, CALLS["getSize"].arguments)
    assert found["getSizeRequest"] == {"topic": "a"}


def test_a_reply_is_what_a_client_reads() -> None:
    from thriftpy2.protocol.binary import TBinaryProtocol
    from thriftpy2.transport import TMemoryBuffer

    result = {"resultCode": ResultCode.SUCCESS}
    values = {"result": result, "itemList": [b"a", memoryview(b"b"), b""], "lastConsumedIndex": 2**40}
    wire = reply("consume", 3, CALLS["consume"].gives, values)
    protocol = TBinaryProtocol(TMemoryBuffer(wire))
    assert protocol.read_message_begin() == ("consume", MessageType.REPLY, 3)
    answered = interface().QueueService.consume_result()
    answered.read(protocol)
    assert answered.success.itemList == [b"a", b"b", b""]
    assert answered.success.lastConsumedIndex == 2**40
