"""The words that ERROR frames have for Luxun's result codes."""

from __future__ import annotations

from typing import Final

import pytest

from sluiceway.client import RefusedError
from sluiceway.protocols.stomp.errors import ProtocolError, word_of
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from sluiceway.queues.logs import claims, codes, staged_commits, table

RESULT_CODES: Final = sorted(
    {
        value
        for module in (codes, table, claims, staged_commits)
        for name, value in vars(module).items()
        if isinstance(value, str) and name == value and value.isupper()
    }
)


def test_a_result_code_is_a_word_with_hyphens_and_no_two_share_one() -> None:
    words = [word_of(code) for code in RESULT_CODES]
    assert len(RESULT_CODES) > 10 and len(set(words)) == len(words)
    assert all(word == word.lower() and "_" not in word for word in words)
    assert word_of("INDEX_OUT_OF_BOUNDS") == "index-out-of-bounds"


def test_the_disk_that_fails_is_not_a_mistake_of_the_broker() -> None:
    assert word_of("INTERNAL_ERROR") == "log-failed"


@pytest.mark.parametrize("code", ["bad-batch", "other-log", "internal-error", "bad-AMQ_SCHEDULED_DELAY"])
def test_a_word_stays_as_it_is(code: str) -> None:
    assert word_of(code) == code
    assert ProtocolError(code, "no").extra == ()


@pytest.mark.parametrize("code", RESULT_CODES)
def test_an_error_has_the_word_as_code_and_the_result_code_beside(code: str) -> None:
    wire = ServerMachine(StompLimits()).fail(ProtocolError(code, "no", extra=[("version", "1.2")]))
    head = wire.partition(b"\n\n")[0].splitlines()
    assert f"code:{word_of(code)}".encode() in head and f"result-code:{code}".encode() in head
    assert b"version:1.2" in head


def test_a_client_knows_both_whatever_the_version_of_its_broker() -> None:
    now = RefusedError("no", "topic-not-exist", "TOPIC_NOT_EXIST")
    before = RefusedError("no", "TOPIC_NOT_EXIST")
    assert (now.code, now.result_code) == (before.code, before.result_code) == ("topic-not-exist", "TOPIC_NOT_EXIST")
    plain, none = RefusedError("no", "bad-batch"), RefusedError("no")
    assert (plain.code, plain.result_code, none.code, none.result_code) == ("bad-batch", None, None, None)
