"""Watching and ending processes: CPU time and resident memory of a broker with all its children, and of the workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def on_cores(cores: frozenset[int] | None) -> Iterator[None]:
    """Limit processes that are started within to these processors (None: no limit). Linux only, a no-op elsewhere.

    The calling thread is moved for the while, since a child inherits its starter's processors; no code has to run in
    the child.
    """
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class ProcessTree:
    """Some processes and all that they have started. An ended process drops out; its CPU time stays counted as last
    seen.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._roots = list(pids)
        self._known: dict[int, psutil.Process] = {}
        self._cpu_seconds: dict[int, float] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look for new children. Costs a walk over all processes of the machine: not for every sample."""
        for pid in self._roots:
            try:
                root = psutil.Process(pid)
                members = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for member in members:
                self._known.setdefault(member.pid, member)

    def cpu_seconds(self) -> float:
        """Return the user and system time used so far by all of them, in steps of the kernel's clock tick (10 ms)."""
        for pid, process in list(self._known.items()):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                del self._known[pid]
                continue
            self._cpu_seconds[pid] = times.user + times.system
        return sum(self._cpu_seconds.values())

    def rss_bytes(self) -> int:
        """Return the resident memory of all of them now; pages that they share count once for each."""
        total = 0
        for pid, process in list(self._known.items()):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                del self._known[pid]
        return total

    def alive(self) -> bool:
        """Return whether every process that this was made of still runs."""
        return all(_runs(pid) for pid in self._roots)

    def end(self, patience_seconds: float) -> None:
        """Ask all to end, and kill the rest after the patience. Only processes of this tree are touched."""
        self.refresh()
        members = list(self._known.values())
        for process in members:
            if process.pid in self._roots:
                _signal(process, "terminate")
        _, left = psutil.wait_procs(members, patience_seconds)
        for process in left:
            _signal(process, "kill")
        psutil.wait_procs(left, 5.0)


def machine_cpu_seconds() -> tuple[float, float]:
    """Return the processor time of the whole machine so far: the used part (time stolen from a virtual machine by its
    host included), and the idle part.
    """
    times = psutil.cpu_times()
    spare = times.idle + getattr(times, "iowait", 0.0)
    # guest time is counted within user time already
    used = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return used, spare


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, what: str) -> None:
    try:
        getattr(process, what)()
    except psutil.NoSuchProcess:
        return
