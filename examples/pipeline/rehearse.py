"""The whole pipeline, rehearsed: the job is killed, a broker is killed, and every sum is right.

    python -m examples.pipeline.rehearse --events 300000

Two brokers (processes), the job (a process with Java and all), a producer that knows what it has sent. The job gets
SIGKILL in the middle, starts again on its checkpoints, and then one of the brokers gets it, and comes back on its data
folder. The output of the job is compared with the sent events, cell by cell. Events after the last window is closed are
left out by the stream, as they should be, and counted by the batch job.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs
import click

from examples.pipeline.events import DAY, DAY_MS, DAY_START_MS, Event, Tally, event, events, tally
from examples.pipeline.produce import LOG, QUEUE, produce
from examples.pipeline.stream import COUNTS_LOG
from examples.stage.account import Account, Check
from examples.stage.flow_map import FlowMap
from examples.stage.screen import marks
from examples.stage.server import ROOT, Server, ServerError
from pyspark_stomp.options import Mark
from sluiceway.client import Consumer, LogClient, RequestError

DELAY: Final = "3 days"
"""Delay of the watermark, longer than one broker may be away while others continue: here a day passes in seconds."""
CLOSING_DAYS: Final = 10
"""Days after which an event comes that closes all windows."""
STRAGGLERS_COUNT: Final = 500
YESTERDAY_COUNT: Final = 500
BATCHES: Final = 8
"""Into how many micro-batches the day is cut, about."""
WAIT_SECONDS: Final = 240.0
"""Time to wait for anything. Spark takes long to start, and longer on a busy machine."""

SPARK_ENVIRONMENT: Final = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **os.environ}
"""Java that is to end within a minute gains nothing from its second compiler, which takes a processor for itself."""

Tell = Callable[[str], None]
Progress = Callable[[str, int, int], None]


class RehearsalError(Exception):
    """Some step did not happen in time. The message names the step and the job's output."""


@attrs.define
class Job:
    """The streaming job as a process."""

    brokers: Sequence[str]
    folder: Path
    events_count: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> Path:
        """File with the output of the process."""
        return self.folder / "job.log"

    def start(self) -> None:
        """Start it, or start it again."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.pipeline.stream", "--brokers", ",".join(self.brokers), "--folder",
                 str(self.folder), "--delay", DELAY, "--records-per-batch", str(max(1, self.events_count // BATCHES))],
                cwd=ROOT, env=SPARK_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to all of it: Python, Java, and the workers."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the job in good order, if that does not take too long."""
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                pass
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass  # all of it has ended
        process.wait()

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait until `reached` is true. Raises RehearsalError if the job ends before, or if it takes too long."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not reached():
            if self._process is None or self._process.poll() is not None:
                raise RehearsalError(f"the job ended before {what}; see {self.output}")
            if time.monotonic() > deadline:
                raise RehearsalError(f"not within {WAIT_SECONDS:g} s: {what}; see {self.output}")
            time.sleep(0.1)

    def batches_count(self, query: str) -> int:
        """Micro-batches that a query has committed."""
        return sum(path.name.isdigit() for path in self._checkpoint(query, "commits").glob("*"))

    def offsets(self, query: str) -> Mapping[str, int]:
        """Return the committed offset of each partition, by its number."""
        numbers = [int(path.name) for path in self._checkpoint(query, "commits").glob("*") if path.name.isdigit()]
        if not numbers:
            return {}
        lines = (self._checkpoint(query, "offsets") / str(max(numbers))).read_text(encoding="utf-8").splitlines()
        # A version, the query's settings, and what its sources have said.
        found: dict[str, int | str] = json.loads(lines[2]).get(f"/log/{LOG}", {})
        return {number: Mark.of(offset).index for number, offset in found.items()}

    def _checkpoint(self, query: str, part: str) -> Path:
        return self.folder / "checkpoints" / query / part


class Rehearsal:
    """Two brokers, the job, and the expected result. A context manager: it ends the processes that it started."""

    def __init__(self, folder: Path, events_count: int, tell: Tell, progress: Progress) -> None:
        """`folder` is emptied."""
        self._folder = folder
        self._tell = tell
        self._progress = progress
        self._stack = ExitStack()
        total = events_count + STRAGGLERS_COUNT
        self._yesterday = [
            attrs.evolve(each, number=-1 - each.number, time_ms=each.time_ms - DAY_MS)
            for each in events(0, YESTERDAY_COUNT, YESTERDAY_COUNT)
        ]
        self._day = list(events(0, events_count, total))
        self._closing = attrs.evolve(event(0, 1), number=total, time_ms=DAY_START_MS + CLOSING_DAYS * DAY_MS)
        self._stragglers = list(events(events_count, total, total))
        self._sent_count = 0
        self._counts = folder / "recompute.jsonl"
        """File with what the batch job has counted."""
        self._batch_job: subprocess.Popen[bytes]
        self.account = Account()
        """Events owed to the files after `play`, each once."""

    def __enter__(self) -> Rehearsal:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        try:
            self._servers = [self._stack.enter_context(Server(self._folder / name)) for name in ("west", "east")]
            self._brokers = [f"{server.host}:{server.port}" for server in self._servers]
            self._job = Job(self._brokers, self._folder, len(self._day))
            self._stack.callback(self._job.stop)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # ------------------------------------------------------------------ the play

    def play(self) -> list[Check]:
        """Play the whole rehearsal. Raises RehearsalError, ServerError."""
        job = self._job
        self._send(self._yesterday)
        time.sleep(0.01)  # times of appending have milliseconds: the day begins with one of its own
        from_ms = time.time_ns() // 1_000_000
        self._tell(f"{len(self._day):,} events of a day go into the log, over two brokers, keyed by user.")
        self._send(self._day)
        self._tell("The job starts: Parquet files, hourly counts, incidents. In its middle: kill -9.")
        job.start()
        job.wait("the first micro-batches", lambda: self._read_count("counts") >= len(self._day) // 4)
        job.kill()
        killed_at = self._read_count("counts")
        self._tell(f"It had committed {killed_at:,} records. It starts again, and then a broker is killed.")
        job.start()
        job.wait("another micro-batch", lambda: self._read_count("counts") > killed_at)
        self._kill_a_broker()
        broker_killed_at = self._read_count("counts")
        self._tell("The broker is back. The job works on what is left; one last event closes the windows.")
        job.wait("the rest of the day", lambda: self._all_read("counts"))
        self._send([self._closing])
        to_come = tally([*self._yesterday, *self._day])
        job.wait("the windows", lambda: self._counted().total_count >= to_come.total_count)
        self._tell(f"{len(self._stragglers)} stragglers come when all windows are closed.")
        self._send(self._stragglers)
        to_ms = time.time_ns() // 1_000_000 + 1
        self._tell("A batch job counts the day again beside it, by the time of appending.")
        self._begin_to_recompute(from_ms, to_ms)
        job.wait("the stragglers", lambda: all(map(self._all_read, ("counts", "events"))))
        job.wait("the incidents", lambda: self._incident_ids().keys() >= self._incidents())
        queue_empty = self._queue_is_empty()
        job.stop()
        self._tell("The job has ended.")
        again = self._recomputed()
        return [
            Check(
                "the job and a broker were killed in the middle of it",
                f"after {killed_at:,} and {broker_killed_at:,} of {self._sent_count:,} records",
                0 < killed_at < len(self._day) and killed_at < broker_killed_at <= self._sent_count,
            ),
            self._compare("hourly counts in the log are exact, each given out once", self._counted(), to_come),
            self._events_in_files(),
            self._incidents_in_files(queue_empty),
            self._compare(
                f"the day counted again has the {len(self._stragglers)} stragglers, and nothing of other days",
                again,
                tally([*self._day, *self._stragglers]),
            ),
        ]

    def _send(self, some: Sequence[Event]) -> None:
        before = self._sent_count
        produce(self._brokers, some, news=lambda count: self._progress("events sent", count, len(some)))
        self._sent_count = before + len(some)

    def _kill_a_broker(self) -> None:
        east = self._servers[1]
        east.kill()
        self._stack.enter_context(Server(self._folder / "east", fresh=False, port=east.port))

    def _read_count(self, query: str) -> int:
        """Return the number of records of the log that a query has committed."""
        count = sum(self._job.offsets(query).values())
        self._progress("records worked on", count, self._sent_count)
        return count

    def _all_read(self, query: str) -> bool:
        return self._read_count(query) >= self._sent_count

    def _queue_is_empty(self) -> bool:
        flow_map = FlowMap(self._servers[0].host, self._servers[0].port)
        try:
            return bool(flow_map.destination(QUEUE).get("depth_count") == 0)
        finally:
            flow_map.close()

    # ------------------------------------------------------------------ what came of it

    def _counted(self) -> Tally:
        """Count the records of the job's own log."""
        sums = Tally()
        broker = self._brokers[0]
        with LogClient(broker) as requests:
            try:
                stop = requests.describe(COUNTS_LOG).next
            except RequestError as error:
                if error.code != "TOPIC_NOT_EXIST":
                    raise
                return sums
        if stop:
            with Consumer(broker, from_="earliest", to=stop) as consumer:
                for record in consumer.stream(COUNTS_LOG, decoder=json.loads):
                    row = record.value
                    sums.add((row["hour_ms"], row["section"]), row["count"], row["bytes"])
        self._progress("counted in closed windows", sums.total_count, self._sent_count)
        return sums

    def _begin_to_recompute(self, from_ms: int, to_ms: int) -> None:
        """Start the batch job."""
        with (self._folder / "recompute.log").open("wb") as log, self._counts.open("wb") as counts:
            self._batch_job = subprocess.Popen(
                [sys.executable, "-m", "examples.pipeline.recompute", "--brokers", ",".join(self._brokers), "--day",
                 DAY, "--from", _utc(from_ms), "--to", _utc(to_ms)],
                cwd=ROOT, env=SPARK_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=counts, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._stack.callback(self._end_batch_job)

    def _end_batch_job(self) -> None:
        """End all of it: Python, Java, and the workers."""
        try:
            os.killpg(self._batch_job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of it has ended
        self._batch_job.wait()

    def _recomputed(self) -> Tally:
        """Wait for the batch job, and count its result. Raises RehearsalError."""
        try:
            code: int | None = self._batch_job.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            raise RehearsalError(f"the batch job failed; see {self._folder / 'recompute.log'}")
        sums = Tally()
        for line in self._counts.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            sums.add((row["hour_ms"], row["section"]), row["count"], row["bytes"])
        return sums

    def _compare(self, claim: str, found: Tally, expected: Tally) -> Check:
        wrong = [cell for cell in expected.counts | found.counts if found.counts[cell] != expected.counts[cell]]
        met = not wrong and found.bytes_counts == expected.bytes_counts
        return Check(
            claim,
            f"{found.total_count:,} of {expected.total_count:,} events in {len(found.counts)} cells, "
            f"{len(wrong)} of them wrong",
            met,
        )

    def _events_in_files(self) -> Check:
        ids = Counter(_column_of(self._folder / "events", "id"))
        self.account = Account(self._sent_count, ids.total())
        expected = {each.number for each in (*self._yesterday, *self._day, self._closing, *self._stragglers)}
        return Check(
            "the Parquet files have each event once",
            f"{ids.total():,} rows, {len(ids):,} different, {len(expected):,} sent",
            ids.total() == len(expected) and set(ids) == expected,
        )

    def _incident_ids(self) -> Counter[int]:
        """Count the incidents in the report so far."""
        return Counter(_column_of(self._folder / "incidents", "id"))

    def _incidents(self) -> set[int]:
        """Return the incidents that were sent to the queue."""
        every = (*self._yesterday, *self._day, self._closing, *self._stragglers)
        return {each.number for each in every if each.is_incident}

    def _incidents_in_files(self, queue_empty: bool) -> Check:
        ids, expected = self._incident_ids(), self._incidents()
        return Check(
            "each incident of the work queue is in the report, and the queue is empty",
            f"{ids.total():,} rows, {len(ids):,} different, {len(expected):,} sent",
            set(ids) == expected and queue_empty,
        )


def _column_of(folder: Path, column: str) -> Iterator[int]:
    """Yield a column of the Parquet files that a stream has committed, without what killed attempts left behind."""
    import pyarrow.parquet

    batches = folder / "_spark_metadata"
    if not batches.exists():
        return
    compacted = [int(path.stem) for path in batches.glob("*.compact")]
    newest = max(compacted, default=-1)
    lists = [batches / f"{newest}.compact"] if compacted else []
    lists += [path for path in batches.iterdir() if path.name.isdigit() and int(path.name) > newest]
    for path in lists:
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            name = unquote(urlsplit(json.loads(line)["path"]).path)
            yield from pyarrow.parquet.read_table(name, columns=[column]).column(column).to_pylist()


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


@click.command()
@click.option("--events", "events_count", default=300_000, show_default=True, help="How many the day has.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/rehearsal"),
    show_default=True,
    help="For the brokers' data, the results and the checkpoints. It is emptied first.",
)
def main(events_count: int, folder: Path) -> None:
    """Play the pipeline with kills, and check every sum."""
    began_seconds = time.monotonic()

    def tell(text: str) -> None:
        click.echo(f"{time.monotonic() - began_seconds:5.1f} s  {text}")

    try:
        with Rehearsal(folder.resolve(), events_count, tell, lambda _what, _done, _total: None) as rehearsal:
            checks = rehearsal.play()
    except (RehearsalError, ServerError) as error:
        click.echo(f"rehearse: {error}", err=True)
        sys.exit(1)
    yes, no = marks()
    for check in checks:
        tell(f"{yes if check.met else no} {check.claim}: {check.numbers}")
    sys.exit(0 if all(check.met for check in checks) else 1)


if __name__ == "__main__":
    main()
