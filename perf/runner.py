"""Runs one scenario once against a broker that listens already, and returns what it measured.

A run with traffic has these steps: workers connect and subscribe; a *checked prelude* of numbered messages, each of
which must arrive exactly once and in its stream's order; full load; after the warm-up the *window*, at whose two ends
the counts of the board and the CPU times are read; the quota is taken away and everything that was sent must arrive, no
more and no less. With a disturbance there are two windows, without and with the neighbour. Idle connections have a way
of their own (`perf.idling`).

Nothing here sleeps for longer than it samples (100 ms), and every wait has a deadline, after which the run is faulty,
not stuck.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from attrs import evolve, frozen

from perf.board import CHECK, FLOOD_QUOTA, LOAD, MODE, QUIT, QUOTA, UNLIMITED, WINDOW_FROM_NS, WINDOW_TO_NS, Board
from perf.crew import Crew
from perf.figures import percentile
from perf.idling import hold_idle
from perf.links import BrokerFaultError
from perf.plans import Endpoint, ReplierPlan, RequesterPlan, WorkerReport
from perf.processes import ProcessTree, machine_cpu_seconds
from perf.results import Measurement
from perf.scenarios import Scenario
from perf.topology import Layout, Load, disturbing_load, measured_load

_SAMPLE_SECONDS = 0.1


@frozen(slots=True)
class Effort:
    """How long and how much.

    `message_count`: when set, each window ends after so many messages in all instead of after `seconds`; that is for
    tests and says nothing about speed. `settle_seconds`: how long the neighbour of a disturbance floods before the
    second window. `silence_seconds`: when nothing has come for so long, what is missing counts as lost.
    `generator_cores`: which processors the load may use.
    """

    seconds: float = 5.0
    warm_up_seconds: float = 1.5
    settle_seconds: float = 4.0
    silence_seconds: float = 15.0
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
            settle_seconds=0.2,
            silence_seconds=10.0,
            check_count=10,
            message_count=10,
            idle_count_max=10,
        )

    def lifetime_seconds(self) -> float:
        """After this a worker ends whatever happens."""
        return 2 * (self.seconds + self.warm_up_seconds + 8 * self.silence_seconds) + self.settle_seconds + 60.0


class Run:
    """One run of a scenario. `measure()` once."""

    def __init__(
        self, scenario: Scenario, peer: str, number: int, endpoint: Endpoint, broker: ProcessTree, effort: Effort
    ):
        self._scenario = scenario
        self._peer = peer
        self._number = number
        self._endpoint = endpoint
        self._broker = broker
        self._effort = effort
        self._faults: list[str] = []
        self._figures: dict[str, float] = {}
        self._rss_peak_bytes = 0

    def measure(self) -> Measurement:
        """Run. What goes wrong with the broker is in the measurement's `faults` and not raised."""
        self._broker.refresh()
        rss_start_bytes = self._sample()
        try:
            if self._scenario.idle_count:
                self._idle()
            else:
                with tempfile.TemporaryDirectory(prefix="sluiceway-perf-") as folder:
                    self._with_workers(Path(folder) / "board")
        except (BrokerFaultError, OSError) as error:
            self._faults.append(f"{type(error).__name__}: {error}")
        if not self._broker.alive():
            self._faults.append("the broker's process has ended")
        self._sample()
        self._figures |= {
            "rss_start_bytes": rss_start_bytes,
            "rss_peak_bytes": self._rss_peak_bytes,
            "rss_growth_bytes": self._rss_peak_bytes - rss_start_bytes,
        }
        return Measurement(self._scenario.name, self._peer, self._number, self._figures, tuple(self._faults))

    # Idle connections.

    def _idle(self) -> None:
        wanted = min(self._scenario.idle_count, self._effort.idle_count_max or self._scenario.idle_count)
        figures, faults = hold_idle(self._endpoint, self._broker, wanted, self._effort.seconds)
        self._figures |= figures
        self._faults += faults

    # Traffic.

    def _with_workers(self, board_path: Path) -> None:
        layout = Layout()
        if self._scenario.round_trips:
            requests, replies = layout.destination("queue", "requests"), layout.destination("queue", "replies")
            done_slot = layout.slot()
            plans = (
                ReplierPlan(self._endpoint, requests, replies),
                RequesterPlan(self._endpoint, requests, replies, self._scenario.body_bytes, done_slot),
            )
            load = flood = None
            counted: tuple[int, ...] = (done_slot,)
        else:
            load = measured_load(self._scenario, self._endpoint, layout)
            plans = (load.consumers, load.producers)  # type: ignore[assignment]
            disturbance = self._scenario.disturbance
            flood = disturbing_load(self._scenario, disturbance, self._endpoint, layout) if disturbance else None
            counted = load.delivered_slots
        board = Board.create(board_path, layout.slot_count)
        try:
            with Crew(board_path, self._effort.lifetime_seconds(), self._effort.generator_cores) as crew:
                try:
                    board[MODE] = CHECK
                    crew.hire(*plans)
                    if load is not None:
                        self._check(board, load)
                    board[MODE] = LOAD
                    self._window(board, crew, counted)
                    if flood is not None and load is not None:
                        self._beside(board, crew, load, flood)
                    if load is not None:
                        self._drain(board, load)
                finally:
                    board[MODE] = QUIT
                self._digest(crew.reports())
        finally:
            board.close()

    def _check(self, board: Board, load: Load) -> None:
        """The checked prelude: each stream sends its numbered messages and all of them arrive."""
        streams = len(load.sent_slots)
        each = max(1, self._effort.check_count // streams)
        board[QUOTA] = each
        expected = load.expected_count((each,) * streams)
        self._arrive(board, load, expected, "the checked prelude")

    def _arrive(self, board: Board, load: Load, expected: int, what: str) -> None:
        """Wait until so many messages have come, and no more."""
        slots = load.delivered_slots
        silence_seconds = self._effort.silence_seconds
        came = _total(board, slots)
        while came < expected and self._wait(
            lambda known=came: _total(board, slots) > known,  # type: ignore[misc]
            silence_seconds,
            _SAMPLE_SECONDS / 20,
        ):
            came = _total(board, slots)
        if came < expected:
            self._faults.append(
                f"{what}: {expected - came} of {expected} messages never came: {silence_seconds:g} s of silence"
            )
        elif (extra := _total(board, slots) - expected) > 0:
            self._faults.append(f"{what}: {extra} more messages came than the {expected} that were sent for")

    def _window(self, board: Board, crew: Crew, counted: tuple[int, ...], fixed_load: bool = True) -> float:
        """Measure one window at full load and return its rate; the figures of the last window stay."""
        effort = self._effort
        if effort.message_count is None:
            board[QUOTA] = UNLIMITED
            if fixed_load:
                self._pass(effort.warm_up_seconds)
        tree = ProcessTree(crew.pids)
        (used_from, spare_from), generator_from = machine_cpu_seconds(), tree.cpu_seconds()
        cpu_from = self._broker.cpu_seconds()
        count_from, time_from = _total(board, counted), time.monotonic()
        board[WINDOW_TO_NS] = 0
        board[WINDOW_FROM_NS] = time.monotonic_ns()
        if effort.message_count is None:
            self._pass(effort.seconds)
        else:
            self._count_off(board, counted, effort.message_count)
        time_to, count_to = time.monotonic(), _total(board, counted)
        board[WINDOW_TO_NS] = time.monotonic_ns()
        cpu_to, generator_to = self._broker.cpu_seconds(), tree.cpu_seconds()
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
        """Let so many more messages through (each stream its share) and wait for them."""
        streams = self._scenario.producer_count
        copies = (
            self._scenario.consumer_count // self._scenario.destination_count if self._scenario.kind == "topic" else 1
        )
        each = max(1, message_count // streams)
        target = _total(board, counted) + each * streams * copies
        board[QUOTA] += each
        if not self._wait(lambda: _total(board, counted) >= target, self._effort.silence_seconds, _SAMPLE_SECONDS / 20):
            self._faults.append(
                f"{target - _total(board, counted)} of the last {each * streams * copies} messages never came"
            )

    def _beside(self, board: Board, crew: Crew, load: Load, flood: Load) -> None:
        """The second window, with the neighbour."""
        alone = self._figures["rate_per_second"]
        crew.hire(flood.consumers)
        crew.hire(flood.producers)
        disturbance = self._scenario.disturbance
        assert disturbance is not None
        board[FLOOD_QUOTA] = self._effort.message_count or disturbance.flood_count
        self._pass(self._effort.settle_seconds)
        beside = self._window(board, crew, load.delivered_slots, fixed_load=False)
        self._figures |= {
            "alone_rate_per_second": alone,
            "retained_ratio": beside / alone if alone else 0.0,
            "flood_count": _total(board, flood.sent_slots),
        }

    def _drain(self, board: Board, load: Load) -> None:
        """Stop the streams and wait for what is under way."""
        board[QUOTA] = min(board[QUOTA], 0) if self._effort.message_count is None else board[QUOTA]
        board[FLOOD_QUOTA] = 0
        if not self._wait(lambda: _total(board, load.idle_slots) == len(load.idle_slots), self._effort.silence_seconds):
            self._faults.append(f"the broker did not take the last messages within {self._effort.silence_seconds:g} s")
        sent = tuple(board[slot] for slot in load.sent_slots)
        self._arrive(board, load, load.expected_count(sent), "the load")
        if sum(sent) == 0:
            self._faults.append("nothing was sent")

    def _digest(self, reports: list[WorkerReport]) -> None:
        """Take over what the workers found."""
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

    # Waiting.

    def _sample(self) -> int:
        rss_bytes = self._broker.rss_bytes()
        self._rss_peak_bytes = max(self._rss_peak_bytes, rss_bytes)
        return rss_bytes

    def _pass(self, seconds: float) -> None:
        """Let time go by, sampling the broker's memory."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SAMPLE_SECONDS))
            self._sample()

    def _wait(
        self, condition: Callable[[], bool], limit_seconds: float, step_seconds: float = _SAMPLE_SECONDS / 10
    ) -> bool:
        """Wait for a condition, at most so long; return whether it came true."""
        end = time.monotonic() + limit_seconds
        while not condition():
            if time.monotonic() > end or not self._broker.alive():
                return False
            time.sleep(step_seconds)
            self._sample()
        return True


def _total(board: Board, slots: tuple[int, ...]) -> int:
    return sum(board[slot] for slot in slots)
