"""The life of a session only goes forward, comes to its end from everywhere, and allows what its table says."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.session_states import MOVES, SessionEvent, SessionState, moved
from tests.protocols.session.test_staging import SMALL, World, large

DISCONNECT = b"DISCONNECT\nreceipt:bye\n\n\0"


def test_each_move_leads_forward() -> None:
    assert all(after > before for before, moves in MOVES.items() for after in moves.values())


def test_each_state_is_reached_and_all_but_the_last_are_left() -> None:
    assert set(MOVES) == set(SessionState)
    assert {after for moves in MOVES.values() for after in moves.values()} == set(SessionState) - {min(SessionState)}
    assert [state for state, moves in MOVES.items() if not moves] == [SessionState.ENDED]


def test_a_socket_may_close_whenever_there_is_one() -> None:
    closing = {state for state, moves in MOVES.items() if SessionEvent.CLOSE in moves}
    assert closing == {state for state in SessionState if state < SessionState.DRAINING}


def test_what_the_table_does_not_have_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="'DISCONNECT' can't happen to a session that is GREETING"):
        moved(SessionState.GREETING, SessionEvent.DISCONNECT)


def test_who_leaves_while_nothing_is_parked_ends_at_once() -> None:
    world = World()
    assert world.session.state is SessionState.OPEN
    world.receive(SMALL + DISCONNECT)
    assert world.session.state is SessionState.ENDING
    assert b"receipt-id:bye" in world.written
    world.session.close()
    assert world.session.closed
    world.run()
    assert world.session.state is SessionState.ENDED


def test_who_leaves_behind_a_body_on_its_way_to_the_disk_is_still_open() -> None:
    """The DISCONNECT is held back like all that came behind it, and confirms the body."""
    world = World()
    world.receive(large() + DISCONNECT)
    assert world.session.state is SessionState.OPEN
    world.bodies.stagings[0].complete()
    world.run()
    assert world.session.state is SessionState.ENDING
    assert world.written.index(b"receipt-id:large") < world.written.index(b"receipt-id:bye")


def test_the_first_reason_to_end_counts() -> None:
    world = World()
    world.session.end("first")
    world.session.end("second")
    assert (world.session.ending, world.session.state) == ("first", SessionState.ENDING)
    world.session.close()
    assert (world.session.ending, world.session.state) == ("first", SessionState.DRAINING)
    world.session.close()
    world.run()
    assert world.session.is_drained


def test_asking_why_it_is_not_read_changes_nothing() -> None:
    world = World()
    world.session.receive(large())
    before = world.session.lanes.waiting_for
    assert world.session.reading_blocked_by is not None
    assert world.session.lanes.waiting_for == before == ""
    assert world.session.update_reading() is world.session.reading_blocked_by
    assert world.session.lanes.waiting_for == "the disk, for its large message"
