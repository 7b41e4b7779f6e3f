"""Brokers that are loaded in turns, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from perf.load.board import FIRST_FREE, Board
from perf.peers import peer_named
from perf.peers.daemon import free_port
from perf.peers.port import PeerError
from perf.reports.page import write_report
from perf.reports.results import Measurement, Results
from perf.reports.turns import turns_lines
from perf.runner import Effort
from perf.scenarios import BY_NAME
from perf.started import started
from perf.turns import Stand, measure_in_turns, share_of

NAME = "turns:sluiceway-bare:1_1_1-1k-auto"


def results() -> Results:
    """Three rounds on a machine that gets slower and slower, and one that broke."""
    runs = [
        Measurement(NAME, peer, number, {"rate_per_second": rate * share, "broker_cpu_us": 4.0})
        for number, rate in enumerate((1000.0, 500.0, 100.0), 1)
        for peer, share in (("sluiceway-bare", 1.0), ("sluiceway-watched", 0.9 + number / 100))
    ]
    plain = Measurement("1_1_1-1k-auto", "sluiceway", 1, {"rate_per_second": 7.0})
    broken = Measurement(NAME, "sluiceway-bare", 9, faults=("nothing came",))
    return Results({"cpu": "x"}, {"sluiceway": "1", "sluiceway-watched": "2"}, {}, (*runs, broken, plain))


def test_a_share_is_the_median_of_the_ratios_within_rounds() -> None:
    share = share_of(results(), NAME, "sluiceway-watched", "sluiceway-bare")
    assert share is not None
    assert (share.low, share.median, share.high) == pytest.approx((0.915, 0.92, 0.925))
    assert share.rounds == 3
    assert share_of(results(), NAME, "sluiceway-tls", "sluiceway-bare") is None


def test_the_page_and_the_terminal_tell_it_apart_from_other_scenarios(tmp_path: Path) -> None:
    lines = list(turns_lines(results()))
    assert lines == [
        "1_1_1-1k-auto: sluiceway-watched keeps 0.92 (0.92 to 0.93) of sluiceway-bare in 3 rounds;"
        " cpu 4.0 µs instead of 4.0 µs",
        f"{NAME}: faulty: nothing came",
    ]
    write_report(results(), tmp_path)
    brokers, _, turns = (tmp_path / "performance-details.md").read_text(encoding="utf-8").partition("## Carried by")
    assert "sluiceway-watched" not in brokers
    assert "| 1_1_1-1k-auto | sluiceway-watched | sluiceway-bare | 0.92 (0.92 to 0.93) | 3 |" in turns


@pytest.mark.timeout(90)
def test_watched_and_unwatched_take_turns() -> None:
    """Real brokers, with somebody who watches one of them."""
    peers = [peer_named("sluiceway-bare"), peer_named("sluiceway-watched")]
    told: list[str] = []
    measured = measure_in_turns(BY_NAME["1_1_1-20b-auto"], peers, starts=1, rounds=2, seconds=0.05, tell=told.append)
    assert not [fault for one in measured.measurements for fault in one.faults]
    assert share_of(measured, "turns:sluiceway-bare:1_1_1-20b-auto", "sluiceway-watched", "sluiceway-bare") is not None
    assert len(told) == 2


def test_a_turn_in_which_the_machine_stood_still_ends_with_the_first_messages(tmp_path: Path) -> None:
    """Its rate is low then, but it is one."""
    delivered, sent, idle = range(FIRST_FREE, FIRST_FREE + 3)
    board = Board.create(tmp_path / "board", FIRST_FREE + 3)
    board[sent], board[idle] = 5, 1

    class Late:
        """Processes that go on when somebody looks at them."""

        def rss_bytes(self) -> int:
            board[delivered] = 5
            return 1

        def alive(self) -> bool:
            return True

        def cpu_seconds(self) -> float:
            return 0.0

    broker: Any = SimpleNamespace(peer=SimpleNamespace(name="late"), tree=Late())
    load: Any = SimpleNamespace(
        delivered_slots=(delivered,), sent_slots=(sent,), idle_slots=(idle,), expected_count=sum
    )
    assert Stand(broker, board, load, Effort()).turn(0.001)["rate_per_second"] > 0
    board.close()


def test_ports_for_servers_are_none_that_the_system_gives_out() -> None:
    """Or somebody would have one before its server starts."""
    ports = [free_port() for _ in range(3)]
    assert len(set(ports)) == 3
    assert max(ports) < 32_768, "where Linux begins"


def test_what_is_more_than_one_flow_is_refused() -> None:
    with pytest.raises(ValueError, match="more to it than one flow"):
        measure_in_turns(BY_NAME["request-reply-100b"], [peer_named("sluiceway")], starts=1, rounds=1, seconds=0.1)


def test_another_checkout_is_a_peer(tmp_path: Path) -> None:
    """An older version beside this one, under the name of its folder and with its own code."""
    before = tmp_path / "before"
    before.symlink_to(Path(__file__).resolve().parents[2])
    peer = peer_named(f"sluiceway@{before}")
    assert peer.name == "sluiceway@before"
    with started(peer, None) as broker:
        (pid,) = broker.peer.pids()
        assert psutil.Process(pid).environ()["PYTHONPATH"] == str(before)
    assert peer_named(f"sluiceway-tls@{before}").name == "sluiceway-tls@before"
    with pytest.raises(PeerError, match="no checkout of Sluiceway; git worktree add"):
        peer_named(f"sluiceway@{tmp_path}")
