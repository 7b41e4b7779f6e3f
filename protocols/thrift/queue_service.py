"""Structs and calls of the QueueService. The interface for clients is `sluiceway/thrift/queue_service.thrift`; a test
holds the two together.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import attrs

from .binary import Field, Fields, Kind

EARLIEST_TIME: Final = -1
LATEST_TIME: Final = -2


class ResultCode(IntEnum):
    """Outcome of a call."""

    SUCCESS = 0
    FAILURE = 1
    TRY_LATER = 2


class ErrorCode(IntEnum):
    """Reason why a call failed."""

    INTERNAL_ERROR = 0
    TOPIC_NOT_EXIST = 1
    INDEX_OUT_OF_BOUNDS = 2
    INVALID_TOPIC = 3
    TOPIC_IS_EMPTY = 4
    AUTHENTICATION_FAILURE = 5
    MESSAGE_SIZE_TOO_LARGE = 6
    ALL_MESSAGE_CONSUMED = 7


def _text(name: str, *, required: bool = False) -> Field:
    return Field(name, Kind.STRING, required, is_text=True)


_RESULT: Final = Field(
    "result",
    Kind.STRUCT,
    required=True,
    fields={
        1: Field("resultCode", Kind.I32, required=True),
        2: Field("errorCode", Kind.I32),
        3: _text("errorMessage"),
    },
)
_TOPIC: Final = _text("topic", required=True)


@attrs.frozen
class Call:
    """A call: the struct that it takes, in an argument of this name, and the struct that it returns."""

    argument: str
    takes: Fields
    gives: Fields

    @property
    def arguments(self) -> Fields:
        """Fields of the struct around the argument."""
        return {1: Field(self.argument, Kind.STRUCT, required=True, fields=self.takes)}


CALLS: Final = {
    "produce": Call(
        "produceRequest",
        {1: Field("item", Kind.STRING, required=True), 2: _TOPIC},
        {1: _RESULT, 2: Field("index", Kind.I64)},
    ),
    "consume": Call(
        "consumeRequest",
        {1: _TOPIC, 2: _text("fanoutId"), 3: Field("startIndex", Kind.I64), 4: Field("maxFetchSize", Kind.I32)},
        {1: _RESULT, 2: Field("itemList", Kind.LIST), 3: Field("lastConsumedIndex", Kind.I64)},
    ),
    "findClosestIndexByTime": Call(
        "findClosestIndexByTimeRequest",
        {1: Field("timestamp", Kind.I64, required=True), 2: _TOPIC},
        {1: _RESULT, 2: Field("index", Kind.I64), 3: Field("timestampOfIndex", Kind.I64)},
    ),
    "deleteTopic": Call("deleteTopicRequest", {1: _TOPIC, 2: _text("password", required=True)}, {1: _RESULT}),
    "getSize": Call("getSizeRequest", {1: _TOPIC, 3: _text("fanoutId")}, {1: _RESULT, 2: Field("size", Kind.I64)}),
    "listTopics": Call(
        "listTopicsRequest",
        {1: Field("offset", Kind.I32)},
        {1: _RESULT, 2: Field("topics", Kind.LIST), 3: Field("omitted", Kind.I64)},
    ),
}
