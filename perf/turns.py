"""Brokers under load in turns of a second or two, to see differences smaller than a machine's noise.

All brokers are up with their load connected; one at a time is sent to, the others stand still (and so do watchers,
`Restless`). A round is a turn of each, and the ratio within a round counts: a slowdown of the machine slows all turns
of a round. The order changes from round to round. Two processes of the same program may differ by a tenth because of
how their memory happens to lie, so all is started anew for each of several *starts*.

Results are ordinary ones, of a scenario named `turns:FIRST PEER:SCENARIO`; rounds are numbered on over the starts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Protocol, runtime_checkable

from attrs import frozen

from perf.comparing import Tell
from perf.load.board import CHECK, LOAD, MODE, QUIT, QUOTA, UNLIMITED, Board
from perf.load.crew import Crew
from perf.load.links import BrokerFaultError
from perf.load.topology import Layout, Load, measured_load
from perf.load.watching import Watch
from perf.peers import Peer
from perf.peers.port import PeerError
from perf.reports.results import Measurement, Results, describe_machine
from perf.runner import Effort
from perf.scenarios import Scenario
from perf.started import Started, started

PREFIX = "turns:"
_SETTLE_SECONDS = 0.3
"""Time from the beginning of a turn to its window: the load starts from nothing."""


class Stand:
    """A broker with its load, which stands until a turn is its."""

    def __init__(self, broker: Started, board: Board, load: Load, effort: Effort) -> None:
        self._broker = broker
        self._board = board
        self._load = load
        self._effort = effort
        self._watch = Watch(broker)
        self.name = broker.peer.name

    def check(self) -> None:
        """Send some numbered messages, each of which must arrive. Raises BrokerFaultError."""
        streams = len(self._load.sent_slots)
        each = max(1, self._effort.check_count // streams)
        self._board[MODE], self._board[QUOTA] = CHECK, each
        self._arrive(self._load.expected_count((each,) * streams))
        self._board[MODE], self._board[QUOTA] = LOAD, 0

    def turn(self, seconds: float) -> dict[str, float]:
        """The figures of a window of full load. Raises BrokerFaultError: something did not arrive afterwards."""
        board, tree = self._board, self._broker.tree
        rest(self._broker.peer, False)
        board[QUOTA] = UNLIMITED
        time.sleep(min(_SETTLE_SECONDS, seconds))
        cpu_from, count_from, time_from = tree.cpu_seconds(), self._delivered(), time.monotonic()
        time.sleep(seconds)
        # The machine may have stood still all the while: then this window ends when the broker could do something.
        self._watch.wait(lambda: self._delivered() > count_from, self._effort.silence_seconds)
        time_to, count_to, cpu_to = time.monotonic(), self._delivered(), tree.cpu_seconds()
        board[QUOTA] = 0
        rest(self._broker.peer, True)
        idle = self._load.idle_slots
        if not self._watch.wait(lambda: board.total(idle) == len(idle), self._effort.silence_seconds):
            raise BrokerFaultError(f"{self.name} did not take the last messages")
        self._arrive(self._load.expected_count(tuple(board[slot] for slot in self._load.sent_slots)))
        count = count_to - count_from
        if not count:
            raise BrokerFaultError(f"{self.name} delivered nothing in {time_to - time_from:.1f} s")
        return {
            "rate_per_second": count / (time_to - time_from),
            "broker_cpu_us": (cpu_to - cpu_from) * 1e6 / count,
        }

    def _delivered(self) -> int:
        return self._board.total(self._load.delivered_slots)

    def _arrive(self, expected: int) -> None:
        came = self._watch.wait_for_count(self._delivered, expected, self._effort.silence_seconds)
        if came != expected:
            raise BrokerFaultError(f"{self.name}: {came} messages came, and {expected} were sent for")


@runtime_checkable
class Restless(Protocol):
    """A peer that uses the machine also while it is not being measured, unless it is told to rest."""

    def rest(self, wanted: bool) -> None:
        """Rest, or continue."""


def rest(peer: Peer, wanted: bool) -> None:
    """Tell a peer to rest, if that is for it to do."""
    if isinstance(peer, Restless):
        peer.rest(wanted)


@contextmanager
def _standing(peer: Peer, scenario: Scenario, effort: Effort, lifetime_seconds: float) -> Iterator[Stand]:
    with (
        started(peer, None, scenario.settings) as broker,
        tempfile.TemporaryDirectory(prefix="sluiceway-perf-") as folder,
    ):
        layout = Layout()
        load = measured_load(scenario, broker.endpoint, layout)
        path = Path(folder) / "board"
        board = Board.create(path, layout.slot_count)
        try:
            with Crew(path, lifetime_seconds) as crew:
                crew.hire(load.consumers, load.producers)
                rest(peer, True)
                stand = Stand(broker, board, load, effort)
                stand.check()
                yield stand
                board[MODE] = QUIT
                if faults := [fault for report in crew.reports() for fault in report.faults]:
                    raise BrokerFaultError(f"{peer.name}: {'; '.join(faults)}")
        finally:
            board[MODE] = QUIT
            board.close()


def measure_in_turns(
    scenario: Scenario, peers: Sequence[Peer], *, starts: int, rounds: int, seconds: float, tell: Tell = print
) -> Results:
    """Measure `rounds` rounds after each of `starts` starts. A fault of a start is in its measurement's `faults`; the
    next start follows.

    Raises ValueError: a scenario without a stream of messages from producers to consumers who are there.
    """
    if (
        scenario.round_trips
        or scenario.idle_count
        or scenario.backlog
        or scenario.disturbance
        or scenario.consumers_late
    ):
        raise ValueError(f"{scenario.name} can't be measured in turns: it has more to it than one flow of messages")
    effort = Effort()
    lifetime_seconds = 120.0 + rounds * len(peers) * (seconds + _SETTLE_SECONDS + 2.0)
    name = f"{PREFIX}{peers[0].name}:{scenario.name}"
    measurements: list[Measurement] = []
    versions: dict[str, str] = {}
    for start in range(starts):
        try:
            with ExitStack() as stack:
                stands = [stack.enter_context(_standing(peer, scenario, effort, lifetime_seconds)) for peer in peers]
                versions |= {peer.name: peer.version() for peer in peers}
                for stand in stands:
                    stand.turn(seconds)  # to warm up
                for number in range(rounds):
                    tell(f"{scenario.name}: start {start + 1} of {starts}, round {number + 1} of {rounds}")
                    shift = number % len(stands)
                    for stand in stands[shift:] + stands[:shift]:
                        run = start * rounds + number + 1
                        measurements.append(Measurement(name, stand.name, run, stand.turn(seconds)))
        except (BrokerFaultError, PeerError, OSError) as error:
            measurements.append(Measurement(name, peers[0].name, (start + 1) * rounds, faults=(str(error),)))
    settings = {"starts": str(starts), "rounds": str(rounds), "window_seconds": f"{seconds:g}"}
    return Results(describe_machine(), versions, settings, tuple(measurements))


@frozen(slots=True)
class Share:
    """Ratio of one peer's figure to another's: the median over the rounds, and the quartiles."""

    median: float
    low: float
    high: float
    rounds: int


def share_of(results: Results, name: str, peer: str, base: str, figure: str = "rate_per_second") -> Share | None:
    """Return the ratio over the rounds in which both took part; None for less than two."""
    mine, theirs = (
        {run.run: run.figures[figure] for run in results.runs(name, one) if not run.faults} for one in (peer, base)
    )
    ratios = [value / theirs[run] for run, value in mine.items() if theirs.get(run)]
    if len(ratios) < 2:
        return None
    low, _middle, high = quantiles(ratios, n=4, method="inclusive")
    return Share(median(ratios), low, high, len(ratios))
