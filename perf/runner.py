"""Runs one scenario once against a broker that listens already, and returns its measurements.

A run with traffic has these steps: workers connect and subscribe; a *checked prelude* of numbered messages, each of
which must arrive exactly once and in its stream's order; full load; after the warm-up the *window*, at whose two ends
the counts of the board and the CPU times are read; the quota is taken away and everything that was sent must arrive, no
more and no less. With a disturbance there are two windows, without and with the neighbour. Where consumers come late,
receipts are counted instead until they do. Idle connections and backlogs have ways of their own (`perf.load.idling`,
`perf.load.backlogs`); a backlog's run starts with an ordinary one, and so does one that is compared with its like in
memory.

Nothing here sleeps for longer than it samples (100 ms), and every wait has a deadline, after which the run is faulty,
not stuck.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Generic, TypeVar

from attrs import evolve, frozen

from perf.load.backlogs import fill_and_drain
from perf.load.board import CHECK, FLOOD_QUOTA, LOAD, MODE, QUIT, QUOTA, UNLIMITED, WINDOW_FROM_NS, WINDOW_TO_NS, Board
from perf.load.crew import Crew
from perf.load.idling import hold_idle
from perf.load.links import BrokerFaultError
from perf.load.plans import ReplierPlan, RequesterPlan, WorkerReport
from perf.load.processes import ProcessTree, machine_cpu_seconds
from perf.load.topology import Layout, Load, disturbing_load, measured_load
from perf.load.watching import Watch
from perf.logs.scenarios import LogScenario
from perf.peers import REFERENCES
from perf.peers.port import PeerError
from perf.reports.figures import percentile
from perf.reports.results import Measurement
from perf.scenarios import Backlog, Scenario
from perf.started import Started

_STEP_SECONDS = 0.005
_TURNS = 5
"""Parts of a flood that goes on, with a pause after each."""
_STORE_COUNTS = ("written_count", "cancelled_count", "syncs_count", "written_bytes")


@frozen(slots=True)
class Effort:
    """Durations and amounts of a run.

    `message_count`: when set, each window ends after that many messages in all instead of after `seconds`; that is for
    tests and says nothing about speed. `settle_seconds`: how long the neighbour of a disturbance floods before the
    second window. `flood_seconds`: length of that window where the flood is a sustained one. `silence_seconds`: after
    that time without an arrival, missing messages count as lost. `backlog_silence_seconds`: the same while a backlog is
    filled or drained: some brokers stop to think then. `backlog_bytes_max`: bodies of a backlog, for tests.
    `backlog_count`: messages of a backlog instead of what its scenario says. `generator_cores`: processors of the load.
    """

    seconds: float = 5.0
    warm_up_seconds: float = 1.5
    settle_seconds: float = 4.0
    flood_seconds: float = 60.0
    backlog_count: int | None = None
    backlog_bytes_max: int | None = None
    silence_seconds: float = 15.0
    backlog_silence_seconds: float = 90.0
    check_count: int = 200
    message_count: int | None = None
    idle_count_max: int | None = None
    generator_cores: frozenset[int] | None = None

    def tiny(self) -> Effort:
        """The same for a test: ten messages, ten idle connections, no warm-up."""
        return evolve(
            self,
            seconds=0.2,
            warm_up_seconds=0.0,
            settle_seconds=0.05,
            flood_seconds=0.1,
            backlog_count=400,
            backlog_bytes_max=8 << 20,
            silence_seconds=10.0,
            backlog_silence_seconds=10.0,
            check_count=10,
            message_count=10,
            idle_count_max=10,
        )

    def lifetime_seconds(self) -> float:
        """Return the time after which a worker ends in any case."""
        windows = 2 * (self.seconds + self.warm_up_seconds + 8 * self.silence_seconds)
        beside = _TURNS * (2 * self.settle_seconds + self.seconds) + max(self.flood_seconds, _TURNS * self.seconds)
        return windows + beside + 60.0


S = TypeVar("S", Scenario, LogScenario)


class MeasuredRun(ABC, Generic[S]):
    """One run of a scenario, watched. `measure()` once."""

    def __init__(self, scenario: S, broker: Started, number: int, effort: Effort) -> None:
        self._scenario = scenario
        self._broker = broker
        self._number = number
        self._effort = effort
        self._watch = Watch(broker)
        self._faults: list[str] = []
        self._figures: dict[str, float] = {}

    @abstractmethod
    def _run(self) -> None:
        """Run the scenario. Raises BrokerFaultError, PeerError, OSError for what goes wrong with the broker."""

    def measure(self) -> Measurement:
        """Run the scenario. What goes wrong with the broker is in the measurement's `faults` and not raised."""
        self._broker.tree.refresh()
        rss_start_bytes = self._watch.sample()
        try:
            self._run()
        except (BrokerFaultError, PeerError, OSError) as error:
            self._faults.append(f"{type(error).__name__}: {error}")
        if self._faults or not self._broker.tree.alive():
            self._faults += self._broker.last_words()
        self._watch.sample()
        self._figures |= {
            "rss_start_bytes": rss_start_bytes,
            "rss_peak_bytes": self._watch.rss_peak_bytes,
            "rss_growth_bytes": self._watch.rss_peak_bytes - rss_start_bytes,
        }
        peer = self._broker.peer.name
        return Measurement(self._scenario.name, peer, self._number, self._figures, tuple(self._faults))


class ScenarioRun(MeasuredRun[Scenario]):
    """One run of a scenario with queues and topics."""

    def _run(self) -> None:
        if self._scenario.idle_count:
            self._idle()
            return
        with tempfile.TemporaryDirectory(prefix="sluiceway-perf-") as folder:
            board_path = Path(folder) / "board"
            if self._scenario.backlog is not None:
                self._on_backlog(self._scenario.backlog, board_path)
            else:
                self._on_traffic(board_path)

    # Idle connections.

    def _idle(self) -> None:
        wanted = min(self._scenario.idle_count, self._effort.idle_count_max or self._scenario.idle_count)
        beat_ms = self._scenario.heart_beat_ms
        # Less than two intervals would measure luck; a tiny run of a test says nothing about speed anyway.
        least_seconds = 0.0 if self._effort.message_count is not None else 2 * beat_ms / 1000
        seconds = max(self._effort.seconds, least_seconds)
        figures, faults = hold_idle(self._broker.endpoint, self._broker.tree, wanted, seconds, beat_ms)
        self._figures |= figures
        self._faults += faults

    # Backlogs.

    def _on_backlog(self, backlog: Backlog, board_path: Path) -> None:
        empty_rate = self._rate_of(evolve(self._scenario, backlog=None))
        usual = backlog.reference_count if self._broker.peer.name in REFERENCES else backlog.message_count
        count = self._effort.backlog_count or usual
        if self._effort.backlog_bytes_max is not None:
            count = min(count, self._effort.backlog_bytes_max // self._scenario.body_bytes)
        figures, faults = fill_and_drain(
            self._scenario,
            count,
            self._broker,
            self._watch,
            board_path,
            self._effort.backlog_silence_seconds,
            self._effort.generator_cores,
        )
        self._figures |= figures
        self._faults += faults
        if empty_rate:
            self._figures |= {
                "empty_rate_per_second": empty_rate,
                "fill_ratio": figures["fill_rate_per_second"] / empty_rate,
                "drain_ratio": figures["drain_rate_per_second"] / empty_rate,
            }

    def _rate_of(self, scenario: Scenario) -> float:
        """Run a variant of the scenario on the same broker and return its rate; its faults count for this run."""
        measured = ScenarioRun(scenario, self._broker, self._number, self._effort).measure()
        self._faults += measured.faults
        return measured.figures.get("rate_per_second", 0.0)

    # Traffic.

    def _on_traffic(self, board_path: Path) -> None:
        memory_rate = 0.0
        if self._scenario.beside_memory:
            memory_rate = self._rate_of(evolve(self._scenario, persistent=False, beside_memory=False))
        before = self._broker.peer.store_counts() if self._scenario.needs_disk else {}
        self._with_workers(board_path)
        if before:
            self._count_store(before, self._broker.peer.store_counts())
        if memory_rate:
            rate = self._figures["rate_per_second"]
            self._figures |= {"memory_rate_per_second": memory_rate, "memory_ratio": rate / memory_rate}

    def _count_store(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Note the work of the broker's store for this run, its prelude included, in the broker's own figures."""
        done = {name: after[name] - before.get(name, 0) for name in _STORE_COUNTS if name in after}
        self._figures |= {f"store_{name}": value for name, value in done.items()}
        cancelled, written = done.get("cancelled_count"), done.get("written_count")
        if cancelled is not None and written is not None and cancelled + written:
            self._figures["cancelled_ratio"] = cancelled / (cancelled + written)

    def _with_workers(self, board_path: Path) -> None:
        layout, endpoint = Layout(), self._broker.endpoint
        if self._scenario.round_trips:
            requests, replies = layout.destination("queue", "requests"), layout.destination("queue", "replies")
            done_slot = layout.slot()
            plans = (
                ReplierPlan(endpoint, requests, replies),
                RequesterPlan(endpoint, requests, replies, self._scenario.body_bytes, done_slot),
            )
            load = flood = None
            counted: tuple[int, ...] = (done_slot,)
        else:
            load = measured_load(self._scenario, endpoint, layout)
            late = self._scenario.consumers_late
            plans = (load.producers,) if late else (load.consumers, load.producers)  # type: ignore[assignment]
            disturbance = self._scenario.disturbance
            flood = disturbing_load(self._scenario, disturbance, endpoint, layout, load) if disturbance else None
            counted = load.confirmed_slots if late else load.delivered_slots
        board = Board.create(board_path, layout.slot_count)
        try:
            with Crew(board_path, self._effort.lifetime_seconds(), self._effort.generator_cores) as crew:
                try:
                    board[MODE] = CHECK
                    crew.hire(*plans)
                    if load is not None:
                        self._check(board, load, counted)
                    board[MODE] = LOAD
                    self._window(board, crew, counted, self._effort.seconds)
                    if flood is not None and load is not None:
                        self._beside(board, crew, load, flood)
                    if load is not None:
                        self._drain(board, crew, load)
                finally:
                    board[MODE] = QUIT
                self._digest(crew.reports())
        finally:
            board.close()

    def _check(self, board: Board, load: Load, counted: tuple[int, ...]) -> None:
        """The checked prelude: each stream sends its numbered messages and all of them are counted."""
        streams = len(load.sent_slots)
        each = max(1, self._effort.check_count // streams)
        board[QUOTA] = each
        expected = load.expected_count((each,) * streams)
        self._arrive(board, counted, expected, "the checked prelude")

    def _arrive(self, board: Board, slots: tuple[int, ...], expected: int, what: str) -> None:
        """Wait until exactly that many messages have come."""
        silence_seconds = self._effort.silence_seconds
        came = self._watch.wait_for_count(lambda: board.total(slots), expected, silence_seconds)
        if came < expected:
            self._faults.append(
                f"{what}: {expected - came} of {expected} messages never came: {silence_seconds:g} s of silence"
            )
        elif (extra := board.total(slots) - expected) > 0:
            self._faults.append(f"{what}: {extra} more messages came than the {expected} that were sent for")

    def _window(
        self, board: Board, crew: Crew, counted: tuple[int, ...], seconds_wanted: float, fixed_load: bool = True
    ) -> float:
        """Measure one window at full load and return its rate; the figures of the last window stay."""
        effort = self._effort
        if effort.message_count is None:
            board[QUOTA] = UNLIMITED
            if fixed_load:
                self._watch.let_pass(effort.warm_up_seconds)
        tree = ProcessTree(crew.pids)
        (used_from, spare_from), generator_from = machine_cpu_seconds(), tree.cpu_seconds()
        cpu_from = self._broker.tree.cpu_seconds()
        count_from, time_from = board.total(counted), time.monotonic()
        board[WINDOW_TO_NS] = 0
        board[WINDOW_FROM_NS] = time.monotonic_ns()
        if effort.message_count is None:
            self._watch.let_pass(seconds_wanted)
        else:
            self._count_off(board, counted, effort.message_count)
        time_to, count_to = time.monotonic(), board.total(counted)
        board[WINDOW_TO_NS] = time.monotonic_ns()
        cpu_to, generator_to = self._broker.tree.cpu_seconds(), tree.cpu_seconds()
        used_to, spare_to = machine_cpu_seconds()
        ours = cpu_to - cpu_from + generator_to - generator_from
        count, seconds = count_to - count_from, time_to - time_from
        rate = count / seconds
        self._figures |= {
            "rate_per_second": rate,
            "delivered_count": count,
            "window_seconds": seconds,
            "broker_cpu_seconds": cpu_to - cpu_from,
            "generator_cpu_seconds": generator_to - generator_from,
            "others_cpu_seconds": max(0.0, used_to - used_from - ours),
            "spare_cpu_seconds": spare_to - spare_from,
        }
        if count:
            self._figures["broker_cpu_us"] = (cpu_to - cpu_from) * 1e6 / count
            self._figures["generator_cpu_us"] = (generator_to - generator_from) * 1e6 / count
        else:
            self._faults.append(f"no message was delivered in a window of {seconds:.1f} s")
        return rate

    def _count_off(self, board: Board, counted: tuple[int, ...], message_count: int) -> None:
        """Let `message_count` more messages through (each stream its share) and wait for them."""
        streams = self._scenario.producer_count
        copies = (
            self._scenario.consumer_count // self._scenario.destination_count if self._scenario.kind == "topic" else 1
        )
        each = max(1, message_count // streams)
        target = board.total(counted) + each * streams * copies
        board[QUOTA] += each
        if not self._watch.wait(lambda: board.total(counted) >= target, self._effort.silence_seconds, _STEP_SECONDS):
            self._faults.append(
                f"{target - board.total(counted)} of the last {each * streams * copies} messages never came"
            )

    def _beside(self, board: Board, crew: Crew, load: Load, flood: Load) -> None:
        """Measure the second window, with the neighbour. A sustained disturbance pauses for a while again and again: a
        part of it is compared with the rates just before and just after, for the machine's speed changes while it
        lasts.
        """
        alone = self._figures["rate_per_second"]
        crew.hire(flood.consumers)
        crew.hire(flood.producers)
        disturbance = self._scenario.disturbance
        assert disturbance is not None
        quota = self._effort.message_count or disturbance.flood_count

        def window(seconds: float, flood_quota: int) -> float:
            board[FLOOD_QUOTA] = flood_quota
            self._watch.let_pass(self._effort.settle_seconds)
            return self._window(board, crew, load.delivered_slots, seconds, fixed_load=False)

        if disturbance.pauses:
            seconds = self._effort.flood_seconds / _TURNS if disturbance.sustained else self._effort.seconds
            ratios: list[float] = []
            for _ in range(_TURNS):
                beside = window(seconds, quota)
                slope = self._watch.slope_bytes_per_second()
                figures_beside = dict(self._figures)
                before, alone = alone, window(self._effort.seconds, 0)
                ratios.append(2 * beside / (before + alone) if before + alone else 0.0)
            self._figures = figures_beside
            if slope is not None:
                self._figures["rss_slope_bytes_per_second"] = slope
            retained_ratio = median(ratios)
        else:
            beside = window(self._effort.seconds, quota)
            retained_ratio = beside / alone if alone else 0.0
        self._figures |= {
            "alone_rate_per_second": alone,
            "retained_ratio": retained_ratio,
            "flood_count": board.total(flood.sent_slots),
        }

    def _drain(self, board: Board, crew: Crew, load: Load) -> None:
        """Stop the streams and wait for what is under way; late consumers come now."""
        board[QUOTA] = min(board[QUOTA], 0) if self._effort.message_count is None else board[QUOTA]
        board[FLOOD_QUOTA] = 0
        patience_seconds = self._effort.silence_seconds
        if not self._watch.wait(lambda: board.total(load.idle_slots) == len(load.idle_slots), patience_seconds):
            self._faults.append(f"the broker did not take or confirm the last messages within {patience_seconds:g} s")
        if self._scenario.consumers_late:
            crew.hire(load.consumers)
        sent = tuple(board[slot] for slot in load.sent_slots)
        self._arrive(board, load.delivered_slots, load.expected_count(sent), "the load")
        if sum(sent) == 0:
            self._faults.append("nothing was sent")

    def _digest(self, reports: list[WorkerReport]) -> None:
        """Take over the findings of the workers."""
        for report in reports:
            self._faults += report.faults
            for prefix, taken in (("", report.latencies_ns), ("high_", report.high_latencies_ns)):
                if not taken:
                    continue
                ordered = sorted(taken)
                self._figures[f"{prefix}p50_us"] = percentile(ordered, 0.5) / 1000
                self._figures[f"{prefix}p99_us"] = percentile(ordered, 0.99) / 1000
                if not prefix:
                    self._figures["p999_us"] = percentile(ordered, 0.999) / 1000
                    self._figures["max_us"] = ordered[-1] / 1000
