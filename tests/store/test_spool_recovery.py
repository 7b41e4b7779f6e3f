"""What a restart makes of spooled transactions: committed ones are found, the others never were."""

from __future__ import annotations

from sluiceway.queues.message import Message
from sluiceway.store import keys
from sluiceway.store.chunks import encode_chunk
from sluiceway.store.engine import Engine, put
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.recovery import Recovered, recover
from sluiceway.store.spool_records import CommitRecord, encode_commit, encode_piece
from tests.store.heads import FiledMessage, PlainHead, PlainHeads

HEADS = PlainHeads()
HEAD = PlainHead(2, b"destination:/queue/a")
A = ("/queue/a", 4, False)
T = ("/topic/t", 7, True)


def piece(target: tuple[str, int, bool], *, file_id: int | None = None) -> bytes:
    wire = HEAD.block + b"\n\nhi\0"
    message = Message(HEAD, wire, 1) if file_id is None else FiledMessage(HEAD, wire, 1, 0, 0, file_id, 10)
    return encode_piece(target, encode_chunk(0, range(1), [message], HEADS))


def spool(engine: Engine, transaction_id: int, pieces: dict[int, bytes], commit_number: int | None = None) -> None:
    changes = [put(keys.transaction_key(transaction_id, place), value) for place, value in pieces.items()]
    if commit_number is not None:
        record = encode_commit(CommitRecord(commit_number, len(pieces)))
        changes.append(put(keys.spool_key(transaction_id), record))
    engine.write(changes, sync=True)


def recovered(engine: Engine) -> Recovered:
    return recover(engine, lambda _count: None, HEADS)


def keys_of(engine: Engine) -> list[bytes]:
    families = (keys.TRANSACTION, keys.SPOOL)
    return [key for family in families for key in engine.iterate_keys(*keys.family_range(family))]


def test_committed_ones_are_found_with_what_they_have_left_in_order_of_their_commits() -> None:
    engine = MemoryEngine()
    spool(engine, 3, {0: piece(A), 1: piece(T), 4: piece(A)}, commit_number=9)
    spool(engine, 5, {2: piece(A)}, commit_number=8)
    found = recovered(engine)
    assert [transaction.transaction_id for transaction in found.transactions] == [5, 3]
    targets = {place: one.target for place, one in found.transactions[1].pieces.items()}
    assert targets == {0: A, 1: T, 4: A}
    assert found.transactions[1].pieces[0].size_bytes == len(piece(A))
    assert (found.next_transaction_id, found.next_commit_number) == (6, 10)
    assert len(keys_of(engine)) == 6, "all is still there: it has to be moved first"


def test_those_that_were_not_committed_are_deleted() -> None:
    engine = MemoryEngine()
    spool(engine, 1, {0: piece(A), 1: piece(A)})
    spool(engine, 2, {0: piece(A)}, commit_number=1)
    spool(engine, 7, {place: piece(A) for place in range(50)})
    spool(engine, 2**64 - 1, {2**32 - 1: piece(A)})
    found = recovered(engine)
    assert [transaction.transaction_id for transaction in found.transactions] == [2]
    assert found.rolled_back_count == 3
    assert keys_of(engine) == [keys.transaction_key(2, 0), keys.spool_key(2)]


def test_a_commit_record_without_pieces_is_deleted() -> None:
    """All had been moved; the end came before it could be told."""
    engine = MemoryEngine()
    spool(engine, 4, {}, commit_number=3)
    found = recovered(engine)
    assert not found.transactions
    assert not keys_of(engine)
    assert found.next_transaction_id == 5


def test_files_of_large_bodies_are_counted_for_those_that_are_committed() -> None:
    engine = MemoryEngine()
    spool(engine, 1, {0: piece(A, file_id=11), 1: piece(T, file_id=11), 2: piece(A)}, commit_number=1)
    spool(engine, 2, {0: piece(A, file_id=12)})
    found = recovered(engine)
    assert found.body_counts == {11: 2}
    assert found.transactions[0].pieces[0].file_ids == [11]


def test_a_damaged_commit_record_commits_all_the_same() -> None:
    """It was written: so somebody has been told."""
    engine = MemoryEngine()
    spool(engine, 1, {0: piece(A)})
    engine.write([put(keys.spool_key(1), b"\xff")], sync=True)
    found = recovered(engine)
    assert [transaction.transaction_id for transaction in found.transactions] == [1]
    assert [fault.key for fault in found.faults] == [keys.spool_key(1)]


def test_a_damaged_piece_is_told_and_the_others_go_on() -> None:
    engine = MemoryEngine()
    spool(engine, 1, {0: piece(A), 1: b"\x01garbage", 2: piece(A)}, commit_number=1)
    found = recovered(engine)
    assert list(found.transactions[0].pieces) == [0, 2]
    assert [fault.key for fault in found.faults] == [keys.transaction_key(1, 1)]
