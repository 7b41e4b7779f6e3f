"""Runs scenarios against several brokers side by side, interleaved: run 1 of each, then run 2 of each in the next
order.

What disturbs this machine for a minute then disturbs all of them alike. Within a scenario every broker is started once,
gets one run that does not count (just-in-time compilers, heaps and file systems warm up), and its runs; a scenario that
leaves a broker full gets a fresh one for each run, warmed up by its load without neighbour or backlog. The brokers that
are not being measured stay up meanwhile, idle.

A target is judged by the medians of the runs, against the better of the reference peers in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from attrs import evolve, frozen

from perf.logs.runner import LogRun
from perf.logs.scenarios import LogScenario
from perf.peers import REFERENCES, RESTLESS, Peer
from perf.peers.port import PeerError
from perf.reports.figures import FIGURES
from perf.reports.results import Measurement, Results, describe_machine
from perf.runner import Effort, ScenarioRun
from perf.scenarios import Goal, Scenario
from perf.started import Started, started

Tell = Callable[[str], None]

_REHEARSAL_SECONDS = 2.0


class Comparison:
    """One call of `run` or `compare`. `results()` may be asked for at any time and holds what is measured so far."""

    def __init__(
        self,
        peers: Sequence[Peer],
        effort: Effort,
        runs: int,
        broker_cores: frozenset[int] | None = None,
        tell: Tell = print,
    ) -> None:
        self._peers = list(peers)
        self._effort = effort
        self._runs = runs
        self._broker_cores = broker_cores
        self._tell = tell
        self._versions: dict[str, str] = {}
        self._measurements: list[Measurement] = []
        self._machine = describe_machine()

    def results(self) -> Results:
        """Return the results measured so far."""
        effort, pinned = self._effort, self._broker_cores is not None
        settings = {
            "runs": str(self._runs),
            "window_seconds": f"{effort.seconds:g}",
            "warm_up_seconds": f"{effort.warm_up_seconds:g}",
            "flood_seconds": f"{effort.flood_seconds:g}",
            "placement": "broker on processor 0, load on processor 1" if pinned else "left to the system",
        }
        return Results(self._machine, dict(self._versions), settings, tuple(self._measurements))

    def measure(self, scenario: Scenario | LogScenario) -> None:
        """Run one scenario against all peers. A peer that fails gets a measurement with a fault, and the others go
        on."""
        if scenario.fresh_broker or any(peer.name in RESTLESS for peer in self._peers):
            for number in range(1, self._runs + 1):
                for peer in self._turn(number):
                    try:
                        with started(peer, self._broker_cores, scenario.settings) as one:
                            self._versions[peer.name] = peer.version()
                            if isinstance(scenario, Scenario) and not scenario.idle_count:
                                self._rehearse(evolve(scenario, disturbance=None, backlog=None), one)
                            self._run(scenario, one, number)
                    except PeerError as error:
                        self._failed(scenario, peer, number, error)
            return
        with ExitStack() as stack:
            up: dict[str, Started] = {}
            for peer in self._peers:
                self._tell(f"{scenario.name}: starting {peer.name}")
                try:
                    up[peer.name] = stack.enter_context(started(peer, self._broker_cores, scenario.settings))
                    self._versions[peer.name] = peer.version()
                except PeerError as error:
                    self._failed(scenario, peer, 0, error)
            for one in up.values():
                self._rehearse(scenario, one)
            for number in range(1, self._runs + 1):
                for peer in self._turn(number):
                    if peer.name in up:
                        self._run(scenario, up[peer.name], number)

    def _turn(self, number: int) -> list[Peer]:
        """The peers in the order of run `number`: each is first, second and so on equally often."""
        shift = (number - 1) % len(self._peers)
        return self._peers[shift:] + self._peers[:shift]

    def _rehearse(self, scenario: Scenario | LogScenario, one: Started) -> None:
        """A run that does not count."""
        if self._effort.message_count is not None:
            return
        self._tell(f"{scenario.name}: {one.peer.name} warms up")
        rehearsal = evolve(self._effort, seconds=min(_REHEARSAL_SECONDS, self._effort.seconds))
        _run_of(scenario, one, 0, rehearsal).measure()

    def _run(self, scenario: Scenario | LogScenario, one: Started, number: int) -> None:
        self._tell(f"{scenario.name}: {one.peer.name}, run {number} of {self._runs}")
        measured = _run_of(scenario, one, number, self._effort).measure()
        self._measurements.append(measured)

    def _failed(self, scenario: Scenario | LogScenario, peer: Peer, number: int, error: PeerError) -> None:
        self._measurements.append(Measurement(scenario.name, peer.name, number, faults=(str(error),)))


def _run_of(scenario: Scenario | LogScenario, one: Started, number: int, effort: Effort) -> ScenarioRun | LogRun:
    if isinstance(scenario, LogScenario):
        return LogRun(scenario, one, number, effort)
    return ScenarioRun(scenario, one, number, effort)


@frozen(slots=True)
class Verdict:
    """Result of one target. `value` is the ratio or the figure that was judged, None without one."""

    target: Goal
    value: float | None
    met: bool
    reason: str


def judge(results: Results, scenario: Scenario | LogScenario, target: Goal, subject: str = "sluiceway") -> Verdict:
    """Hold one target of one scenario against the medians of the results."""
    own = results.medians(scenario.name, subject)
    if any(run.faults for run in results.runs(scenario.name, subject)):
        return Verdict(target, None, False, "a run was faulty")
    if target.figure not in own:
        return Verdict(target, None, False, "not measured")
    lower = FIGURES[target.figure].better == "lower"
    mine = own[target.figure]
    if target.against == "itself":
        return Verdict(target, mine, mine <= target.at_least if lower else mine >= target.at_least, "")
    best = better_of(results, scenario.name, target.figure, REFERENCES)
    if best is None:
        return Verdict(target, None, False, "no reference peer was measured")
    name, theirs = best
    value = ratio(target.figure, mine, theirs)
    return Verdict(target, value, value >= target.at_least, f"against {name}")


def better_of(results: Results, scenario: str, figure: str, peers: Iterable[str]) -> tuple[str, float] | None:
    """Return the peer with the better median of a figure and that median, or None where none has it."""
    medians = [(peer, results.medians(scenario, peer)) for peer in peers]
    values = [(peer, figures[figure]) for peer, figures in medians if figure in figures]
    if not values:
        return None
    choose = min if FIGURES[figure].better == "lower" else max
    return choose(values, key=lambda pair: pair[1])


def ratio(figure: str, mine: float, theirs: float) -> float:
    """Return how many times better the first value is than the second: above 1 is better whichever way the figure
    points.
    """
    if FIGURES[figure].better == "lower":
        mine, theirs = theirs, mine
    return mine / theirs if theirs else float("inf")
