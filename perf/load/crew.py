"""The workers of one run: started, awaited, and ended by the runner, never left behind."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from perf.load.links import BrokerFaultError
from perf.load.plans import Assignment, Plan, WorkerReport
from perf.load.processes import on_cores

_REPORT_SECONDS = 20.0


class Crew:
    """Worker processes around one board. A context manager: at its end every worker is gone, however it ends.

    `cores`: the processors that the workers may use, None for all.
    """

    def __init__(self, board: Path, lifetime_seconds: float, cores: frozenset[int] | None = None) -> None:
        self._board = board
        self._cores = cores
        self._lifetime_seconds = lifetime_seconds
        self._workers: list[subprocess.Popen[bytes]] = []

    def hire(self, *plans: Plan) -> None:
        """Start a worker for each plan and wait until all are connected and subscribed.

        Raises BrokerFaultError: a worker could not connect or subscribe; it carries what the worker said.
        """
        hired = []
        for plan in plans:
            with on_cores(self._cores):
                worker = subprocess.Popen(
                    [sys.executable, "-m", "perf.load.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=Path(__file__).resolve().parents[2],
                    start_new_session=True,
                )
            self._workers.append(worker)
            hired.append(worker)
            assert worker.stdin is not None
            pickle.dump(Assignment(plan, self._board, self._lifetime_seconds), worker.stdin)
            worker.stdin.close()
        for worker in hired:
            assert worker.stdout is not None
            said = worker.stdout.readline().decode().strip()
            if said != "ready":
                raise BrokerFaultError(said or f"a load worker ended at its start with status {worker.wait()}")

    @property
    def pids(self) -> list[int]:
        """The process ids of all workers hired so far."""
        return [worker.pid for worker in self._workers]

    def reports(self) -> list[WorkerReport]:
        """Wait for the workers to end (the board must say QUIT) and return what they report, in the order of hiring."""
        found = []
        for worker in self._workers:
            try:
                output, _ = _outcome(worker)
            except subprocess.TimeoutExpired:
                found.append(
                    WorkerReport((f"load worker {worker.pid} did not end within {_REPORT_SECONDS} s of being told",))
                )
                continue
            if worker.returncode == 0:
                found.append(pickle.loads(output))
            else:
                found.append(
                    WorkerReport((output.decode(errors="replace").strip() or "a load worker broke: see its traceback",))
                )
        return found

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()


def _outcome(worker: subprocess.Popen[bytes]) -> tuple[bytes, int]:
    worker.stdin = None  # closed when the assignment was handed over; communicate() would flush it again
    output, _ = worker.communicate(timeout=_REPORT_SECONDS)
    return output, worker.returncode
