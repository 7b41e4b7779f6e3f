"""Runs one scenario of logs once against a broker that listens already, and returns its measurements.

Records to read are appended before, through the broker, and stay for the next runs. Every run is checked: receipts and
MESSAGEs follow on each other by index (`perf.logs.appending`, `perf.logs.reading`), and at its end the log has as many
records as were sent.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psutil

from perf.load.board import FIRST_FREE, LOAD, MODE, QUIT, QUOTA, UNLIMITED, Board
from perf.load.crew import Crew
from perf.load.links import BrokerFaultError, RawLink
from perf.load.processes import ProcessTree, machine_cpu_seconds
from perf.logs.plans import AppendPlan, RawCopyPlan, ReaderPlan, ReadPlan
from perf.logs.scenarios import BATCH_COUNT, LogScenario
from perf.runner import MeasuredRun
from perf.scenarios import KIB, MIB

_STEP_SECONDS = 0.002
_RAW_FILE_BYTES = 128 * MIB
_SLOTS_COUNT = 64
_FILL_PER_SECOND = 20_000
"""A broker slower than that does not fill a log in the lifetime of a worker."""
_STREAM_HEADERS = "x-queue-type:stream\ndurable:true\nauto-delete:false\n"
_numbers = count()
_filled: dict[tuple[int, str], int] = {}
"""Lengths of the logs of a broker that can't be asked: by its port and their names."""


class _Shift:
    """A board with the workers around it."""

    def __init__(self, board: Board, crew: Crew) -> None:
        self.board = board
        self.crew = crew
        self._slots = count(FIRST_FREE)

    def slot(self) -> int:
        return next(self._slots)


class LogRun(MeasuredRun[LogScenario]):
    """One run of a scenario of logs."""

    @property
    def _rabbit(self) -> bool:
        return self._broker.peer.name == "rabbitmq"

    def _run(self) -> None:
        if self._rabbit and not self._scenario.stream:
            raise BrokerFaultError("RabbitMQ has nothing like it over STOMP: see the scenarios log-stream-…")
        kinds = {
            "append": self._append,
            "read": self._read,
            "groups": self._groups,
            "past": self._past,
            "memory": self._memory,
        }
        kinds[self._scenario.kind]()

    # ------------------------------------------------------------------ what all need

    @property
    def _tiny(self) -> bool:
        return self._effort.message_count is not None

    def _destination(self, name: str) -> str:
        return f"/amq/queue/{name}" if self._rabbit else f"/log/{name}"

    @contextmanager
    def _shift(self, lifetime_seconds: float | None = None) -> Iterator[_Shift]:
        with tempfile.TemporaryDirectory(prefix="sluiceway-perf-") as folder:
            path = Path(folder) / "board"
            board = Board.create(path, _SLOTS_COUNT)
            try:
                lifetime_seconds = lifetime_seconds or self._effort.lifetime_seconds()
                with Crew(path, lifetime_seconds, self._effort.generator_cores) as crew:
                    try:
                        yield _Shift(board, crew)
                    finally:
                        board[MODE] = QUIT
                    for report in crew.reports():
                        self._faults += report.faults
            finally:
                board.close()

    def _appender(self, shift: _Shift, destination: str, *, body_bytes: int | None = None) -> AppendPlan:
        scenario = self._scenario
        return AppendPlan(
            self._broker.endpoint,
            destination,
            body_bytes or scenario.body_bytes,
            scenario.batch_count,
            scenario.window_count,
            scenario.receipt_every,
            scenario.rate_per_second,
            QUOTA,
            shift.slot(),
            shift.slot(),
        )

    def _reader(
        self,
        shift: _Shift,
        destination: str,
        place: str,
        *,
        start: int = 0,
        stop: int = 0,
        rounds_count: int = 0,
        batch_bytes: int | None = None,
        group: str = "",
    ) -> ReaderPlan:
        scenario = self._scenario
        headers = ""
        if scenario.prefetch_count:
            headers += f"prefetch-count:{scenario.prefetch_count}\n"
        if self._rabbit:
            headers += _STREAM_HEADERS + f"x-stream-offset:{'first' if place == 'earliest' else place}\n"
        else:
            headers += f"from:{place}\n"
            if stop and not group:
                headers += f"to:{stop}\n"
            batch_bytes = scenario.batch_bytes if batch_bytes is None else batch_bytes
            if batch_bytes:
                headers += f"batch:{batch_bytes}\n"
        return ReaderPlan(
            destination,
            headers,
            group,
            start,
            stop,
            rounds_count,
            bool(batch_bytes),
            scenario.ack if not batch_bytes or group else "auto",
            shift.slot(),
            shift.slot(),
            "x-stream-offset" if self._rabbit else "index",
        )

    def _ask(self, request: str, **facts: object) -> dict[str, object]:
        """A request about logs. Raises BrokerFaultError."""
        link = RawLink(self._broker.endpoint)
        try:
            link.subscribe("/temp-queue/perf", "perf", "auto", 1)
            body = json.dumps(facts).encode()
            head = f"SEND\ndestination:/sluiceway/log/{request}\nreply-to:/temp-queue/perf\n"
            link.sock.sendall(f"{head}content-length:{len(body)}\n\n".encode() + body + b"\0")
            reply: dict[str, object] = json.loads(link.expect(b"MESSAGE").partition(b"\n\n")[2])
        finally:
            link.close()
        return reply

    def _length(self, name: str) -> int:
        """Return the length of a log; 0 without one."""
        reply = self._ask("describe", log=name)
        return int(str(reply["next"])) if reply.get("ok") else 0

    def _await(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until it comes true, while there is progress within `silence_seconds`."""
        if self._watch.wait(condition, self._effort.silence_seconds, _STEP_SECONDS):
            return True
        self._faults.append(f"{what} within {self._effort.silence_seconds:g} s")
        return False

    def _fill(self, name: str, wanted: int, body_bytes: int) -> int:
        """Append until the log is long enough, in whole batches; returns its length."""
        destination = self._destination(name)
        step = self._scenario.batch_count or 1000
        wanted = -(-wanted // step) * step
        there = _filled.get((self._broker.endpoint.port, name), 0) if self._rabbit else self._length(name)
        if there >= wanted:
            return there
        if self._rabbit:
            self._declare(name)
        with self._shift(60 + wanted / _FILL_PER_SECOND) as shift:
            plan = AppendPlan(
                self._broker.endpoint, destination, body_bytes, self._scenario.batch_count, 16,
                1 if self._scenario.batch_count else 1000, 0.0, QUOTA, shift.slot(), shift.slot(),
            )  # fmt: skip
            board = shift.board
            board[MODE] = LOAD
            shift.crew.hire(plan)
            missing = wanted - there
            board[QUOTA] = missing
            silence_seconds = self._effort.backlog_silence_seconds
            came = self._watch.wait_for_count(lambda: board[plan.confirmed_slot], missing, silence_seconds)
            if came < missing:
                raise BrokerFaultError(f"filling {destination}: {came} of {missing} records were confirmed")
        _filled[self._broker.endpoint.port, name] = wanted
        return wanted

    def _declare(self, name: str) -> None:
        """Make the stream of RabbitMQ."""
        link = RawLink(self._broker.endpoint)
        try:
            headers = f"{_STREAM_HEADERS}x-queue-name:{name}\nprefetch-count:1\n"
            link.sock.sendall(
                f"SUBSCRIBE\nid:d\ndestination:/topic/{name}\nack:client\n{headers}receipt:d\n\n\0".encode()
            )
            link.expect(b"RECEIPT")
        finally:
            link.close()

    def _window(
        self, shift: _Shift, counted: tuple[int, ...], bytes_slots: tuple[int, ...], *, until: Callable[[], bool] | None
    ) -> float:
        """Measure one window and return its rate; the figures of the last one stay. `until`: it ends early then."""
        board, effort = shift.board, self._effort
        tree = ProcessTree(shift.crew.pids)
        (used_from, spare_from), generator_from = machine_cpu_seconds(), tree.cpu_seconds()
        cpu_from, bytes_from = self._broker.tree.cpu_seconds(), board.total(bytes_slots)
        count_from, time_from = board.total(counted), time.monotonic()
        if until is None:
            self._watch.let_pass(effort.seconds)
        else:
            self._watch.wait(until, effort.silence_seconds if self._tiny else effort.seconds, _STEP_SECONDS)
        time_to, count_to = time.monotonic(), board.total(counted)
        cpu_to, generator_to = self._broker.tree.cpu_seconds(), tree.cpu_seconds()
        bytes_to, (used_to, spare_to) = board.total(bytes_slots), machine_cpu_seconds()
        ours = cpu_to - cpu_from + generator_to - generator_from
        records, seconds = count_to - count_from, time_to - time_from
        self._figures |= {
            "rate_per_second": records / seconds,
            "delivered_count": records,
            "log_bytes_per_second": records * self._scenario.body_bytes / seconds,
            "wire_bytes_per_second": (bytes_to - bytes_from) / seconds,
            "window_seconds": seconds,
            "broker_cpu_seconds": cpu_to - cpu_from,
            "generator_cpu_seconds": generator_to - generator_from,
            "others_cpu_seconds": max(0.0, used_to - used_from - ours),
            "spare_cpu_seconds": spare_to - spare_from,
        }
        if records:
            self._figures["broker_cpu_us"] = (cpu_to - cpu_from) * 1e6 / records
            self._figures["generator_cpu_us"] = (generator_to - generator_from) * 1e6 / records
        elif not (self._tiny and board.total(counted)):  # a handful is there before the window begins
            self._faults.append(f"nothing moved in a window of {seconds:.1f} s")
        return records / seconds

    # ------------------------------------------------------------------ kinds

    def _append(self) -> None:
        scenario, effort = self._scenario, self._effort
        name = f"perf-{scenario.name}-{os.getpid()}-{next(_numbers)}"
        if self._rabbit:
            self._declare(name)
        with self._shift() as shift:
            board = shift.board
            plan = self._appender(shift, self._destination(name))
            counted = (plan.confirmed_slot if plan.window_count else plan.sent_slot,)
            shift.crew.hire(plan)
            board[MODE] = LOAD
            if effort.message_count is not None:
                step = scenario.batch_count or 1000
                wanted = -(-effort.message_count // step) * step
                board[QUOTA] = wanted
                self._window(shift, counted, (), until=lambda: board.total(counted) >= wanted)
            else:
                board[QUOTA] = UNLIMITED
                self._watch.let_pass(effort.warm_up_seconds)
                self._window(shift, counted, (), until=None)
                board[QUOTA] = 0
                time.sleep(0.1)
            sent = lambda: board[plan.sent_slot]  # noqa: E731
            if plan.window_count:
                self._await(lambda: board[plan.confirmed_slot] >= sent(), "not all receipts came")
            if not self._rabbit:
                self._await(lambda: self._length(name) >= sent(), "the log did not become as long as what was sent")
                if (length := self._length(name)) != sent():
                    self._faults.append(f"the log has {length} records, {sent()} were sent")
        if scenario.beside_raw:
            self._raw_disk()

    def _log_to_read(self) -> tuple[str, int]:
        scenario = self._scenario
        step = scenario.batch_count or 1000
        wanted = 2 * step if self._tiny else scenario.fill_count
        name = f"perf-{scenario.body_bytes}b"
        if self._rabbit or scenario.stream:
            name = f"perf-{scenario.name}-{os.getpid()}"
        self._fill(name, wanted, scenario.body_bytes)
        return name, -(-wanted // step) * step

    def _read(self) -> None:
        scenario, effort = self._scenario, self._effort
        name, stop = self._log_to_read()
        with self._shift() as shift:
            board = shift.board
            group = f"g{os.getpid()}-{next(_numbers)}" if scenario.grouped else ""
            plan = self._reader(
                shift,
                self._destination(name),
                "earliest",
                stop=stop,
                rounds_count=1 if self._tiny else 0,
                group=group,
            )
            shift.crew.hire(ReadPlan(self._broker.endpoint, (plan,)))
            board[MODE] = LOAD
            counted = (plan.delivered_slot,)
            if self._tiny:
                self._window(shift, counted, (plan.bytes_slot,), until=lambda: board.total(counted) >= stop)
                if board.total(counted) != stop:
                    self._faults.append(f"{board.total(counted)} records came of {stop}")
            else:
                self._watch.let_pass(effort.warm_up_seconds)
                self._window(shift, counted, (plan.bytes_slot,), until=None)
        if scenario.beside_raw:
            self._raw()

    def _raw(self) -> None:
        """Measure the copy over the loopback."""
        with tempfile.TemporaryDirectory(prefix="sluiceway-perf-") as folder:
            path = Path(folder) / "raw"
            block = os.urandom(MIB)
            with path.open("wb") as file:
                for _ in range(1 if self._tiny else _RAW_FILE_BYTES // MIB):
                    file.write(block)
            with self._shift() as shift:
                board, bytes_slot, port_slot = shift.board, shift.slot(), shift.slot()
                shift.crew.hire(RawCopyPlan(False, path, bytes_slot, port_slot))
                shift.crew.hire(RawCopyPlan(True, path, bytes_slot, port_slot))
                board[MODE] = LOAD
                time.sleep(self._effort.warm_up_seconds / 2)
                from_bytes, from_seconds = board[bytes_slot], time.monotonic()
                time.sleep(min(3.0, self._effort.seconds))
                seconds = time.monotonic() - from_seconds
                raw = (board[bytes_slot] - from_bytes) / seconds
        self._figures["raw_bytes_per_second"] = raw
        if raw:
            self._figures["raw_ratio"] = self._figures["wire_bytes_per_second"] / raw

    def _raw_disk(self) -> None:
        """Measure the disk: a file that grows, synced every 8 MiB, as the broker's do."""
        block = os.urandom(8 * MIB)
        seconds = 0.2 if self._tiny else min(3.0, self._effort.seconds)
        with self._broker.scratch_file() as file:
            written_bytes, from_seconds = 0, time.monotonic()
            while time.monotonic() - from_seconds < seconds:
                written_bytes += os.pwrite(file, block, written_bytes)
                os.fsync(file)
            raw = written_bytes / (time.monotonic() - from_seconds)
        self._figures["raw_bytes_per_second"] = raw
        self._figures["raw_ratio"] = self._figures["log_bytes_per_second"] / raw

    def _groups(self) -> None:
        """Read all of the log by one group, and all of it by ten."""
        name, stop = self._log_to_read()
        taken: dict[int, tuple[float, float]] = {}
        for groups_count in (1, 10):
            with self._shift() as shift:
                board = shift.board
                run = next(_numbers)
                readers = tuple(
                    self._reader(
                        shift,
                        self._destination(name),
                        "earliest",
                        stop=stop,
                        rounds_count=1,
                        group=f"g{os.getpid()}-{run}-{number}",
                    )
                    for number in range(groups_count)
                )
                shift.crew.hire(ReadPlan(self._broker.endpoint, readers))
                slots = tuple(reader.delivered_slot for reader in readers)
                cpu_from, from_seconds = self._broker.tree.cpu_seconds(), time.monotonic()
                board[MODE] = LOAD
                self._await_count(board, slots, stop * groups_count)
                seconds = time.monotonic() - from_seconds
                taken[groups_count] = seconds, self._broker.tree.cpu_seconds() - cpu_from
                self._figures["rate_per_second"] = stop * groups_count / seconds
        one, ten = taken[1], taken[10]
        self._figures |= {
            "one_group_seconds": one[0],
            "ten_groups_seconds": ten[0],
            "groups_time_ratio": ten[0] / one[0],
            "groups_cpu_ratio": ten[1] / max(one[1], 0.01),
        }

    def _await_count(self, board: Board, slots: tuple[int, ...], wanted: int) -> None:
        came = board.total(slots)
        while came < wanted:
            if not self._watch.wait(
                lambda known=came: board.total(slots) > known,  # type: ignore[misc]
                self._effort.silence_seconds,
                _STEP_SECONDS,
            ):
                break
            came = board.total(slots)
        if came != wanted:
            self._faults.append(f"{came} records came of {wanted}")

    def _past(self) -> None:
        """Measure the tail alone, then beside a reader of records that are not in memory."""
        scenario, effort = self._scenario, self._effort
        name = f"perf-{scenario.name}"
        past_count = self._fill(name, 2 * BATCH_COUNT if self._tiny else scenario.fill_count, KIB)
        past_count = min(past_count, 2 * BATCH_COUNT if self._tiny else scenario.fill_count)
        self._broker.forget_cached()
        destination = self._destination(name)
        with self._shift() as shift:
            board = shift.board
            appender = self._appender(shift, destination)
            tail = self._reader(shift, destination, "next")
            past = self._reader(shift, destination, "earliest", stop=past_count, rounds_count=1, batch_bytes=MIB)
            shift.crew.hire(ReadPlan(self._broker.endpoint, (tail,)))
            board[MODE] = LOAD
            time.sleep(0.2)  # until it has subscribed: it shall see all that is appended
            shift.crew.hire(appender)
            board[QUOTA] = (effort.message_count and 2 * BATCH_COUNT) or UNLIMITED
            self._watch.let_pass(effort.warm_up_seconds)
            alone = self._window(
                shift,
                (tail.delivered_slot,),
                (tail.bytes_slot,),
                until=(lambda: board[tail.delivered_slot] >= 2 * BATCH_COUNT) if self._tiny else None,
            )
            if effort.message_count:
                board[QUOTA] = 4 * BATCH_COUNT
            read_from_bytes = self._disk_read_bytes()
            shift.crew.hire(ReadPlan(self._broker.endpoint, (past,)))
            past_from, from_seconds = board[past.bytes_slot], time.monotonic()
            beside = self._window(
                shift,
                (tail.delivered_slot,),
                (tail.bytes_slot,),
                until=lambda: board[past.delivered_slot] >= past_count,
            )
            seconds = time.monotonic() - from_seconds
            self._figures |= {
                "alone_rate_per_second": alone,
                "retained_ratio": beside / alone if alone else 0.0,
                "past_bytes_per_second": (board[past.bytes_slot] - past_from) / seconds,
                "past_disk_bytes": self._disk_read_bytes() - read_from_bytes,
            }
            if not board[past.delivered_slot]:
                self._faults.append("the reader of the past got nothing")
            board[QUOTA] = 0
            self._await_count(board, (tail.delivered_slot,), self._settled(board, appender.sent_slot))

    def _settled(self, board: Board, slot: int) -> int:
        """Wait until a counter stands still, and return it."""
        known = -1
        while board[slot] != known:
            known = board[slot]
            time.sleep(0.1)
        return known

    def _disk_read_bytes(self) -> int:
        """Return the bytes that the broker had read from the disk so far; 0 where the system does not say."""
        total = 0
        for pid in self._broker.peer.pids():
            try:
                total += psutil.Process(pid).io_counters().read_bytes
            except (psutil.Error, AttributeError):
                continue
        return total

    def _memory(self) -> None:
        """A log larger than memory is to be: filled, and read whole."""
        scenario, effort = self._scenario, self._effort
        count = 2 * BATCH_COUNT if self._tiny else (effort.backlog_count or scenario.fill_count)
        name = "perf-memory"
        anon_from = self._anon_bytes()
        count = self._fill(name, count, scenario.body_bytes)
        self._figures["filled_rss_bytes"] = self._watch.sample()
        with self._shift(60 + count / _FILL_PER_SECOND) as shift:
            board = shift.board
            plan = self._reader(shift, self._destination(name), "earliest", stop=count, rounds_count=1)
            shift.crew.hire(ReadPlan(self._broker.endpoint, (plan,)))
            board[MODE] = LOAD
            from_seconds = time.monotonic()
            samples: list[tuple[float, int]] = []
            while board[plan.delivered_slot] < count:
                known = board[plan.delivered_slot]
                self._watch.let_pass(min(1.0, effort.seconds / 10))
                samples.append((time.monotonic(), self._watch.sample()))
                if board[plan.delivered_slot] == known:
                    self._await(lambda known=known: board[plan.delivered_slot] > known, "nothing more came")  # type: ignore[misc]
                    if board[plan.delivered_slot] == known:
                        break
            seconds = time.monotonic() - from_seconds
            came = board[plan.delivered_slot]
            if came != count:
                self._faults.append(f"{came} records came of {count}")
            self._figures |= {
                "log_bytes": count * scenario.body_bytes,
                "log_bytes_per_second": came * scenario.body_bytes / seconds,
                "rate_per_second": came / seconds,
                "anon_growth_bytes": max(0, self._anon_bytes() - anon_from),
            }
            settled = samples[len(samples) // 4 :]
            if len(settled) > 1 and settled[-1][0] > settled[0][0]:
                from statistics import linear_regression

                self._figures["rss_slope_bytes_per_second"] = linear_regression(
                    [when for when, _ in settled], [float(size) for _, size in settled]
                ).slope

    def _anon_bytes(self) -> int:
        """Resident memory of the broker that is no mapped file; 0 where the system does not say."""
        total = 0
        for pid in self._broker.peer.pids():
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) * KIB for line in lines if line.startswith("RssAnon:"))
        return total
