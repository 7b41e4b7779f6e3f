"""The processes of `sluiceway serve --hubs N`: one hub each, started, watched, restarted and stopped by a supervisor.

The supervisor binds every address once for each hub (SO_REUSEPORT, so the kernel spreads new connections) and keeps
its copies open: while a hub is restarted, clients that the kernel sends there wait in the backlog and are not refused.
The hub inherits its sockets (`inherited.py`).

Hubs report as services do to systemd (`sluiceway.supervision`): ready, alive once a second, stopping. A hub that ends
without being asked is started again, after a pause that doubles with each failure in a row. A ready hub that has been
silent for `SILENCE_SECONDS` is killed and started again. The start fails as a whole with the exit code of the first hub
that ends before it was ready.

Bounds: one task, one process and two sockets a hub; a datagram of a hub is read up to 4 KiB.
"""

from __future__ import annotations

import enum
import math
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from sluiceway.cluster.hub import HAS_RUN_VARIABLE
from sluiceway.protocols.log import get_logger

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 10.0
SOUND_SECONDS: Final = 60.0
"""Time after which a ready hub counts as sound: its next failure is the first one again."""
SILENCE_SECONDS: Final = 30.0
"""Time without a report after which a ready hub counts as hung."""
HUNG_SECONDS: Final = 5.0
"""The same for a hub whose session with the others has ended."""
STOP_SECONDS: Final = 120.0
"""Time without a report after which a hub that was told to stop counts as hung."""
REPORT_BYTES_MAX: Final = 4096
SIGNAL_NAMES: Final = {number.value: number.name for number in signal.Signals}

log = get_logger("sluiceway.supervisor")


class HubState(enum.Enum):
    """State of one process."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    WAITING = "waiting before the next start"
    ENDED = "ended"


class StartFailedError(Exception):
    """A hub ended before it was ready for the first time.

    `exit_code` is that of the process: the hub has printed the reason on standard error.
    """

    def __init__(self, hub: str, exit_code: int) -> None:
        super().__init__(f"{hub} ended with exit code {exit_code} while it started: standard error has the reason")
        self.hub = hub
        self.exit_code = exit_code


@attrs.frozen
class HubCommand:
    """Command line of one hub."""

    name: str
    """Name of the hub: `hub-1`."""
    arguments: Sequence[str]
    """Program and arguments."""
    environment: Mapping[str, str]
    """Variables beside those of the supervisor."""
    descriptors: Sequence[int] = ()
    """File descriptors that the process inherits, under the same numbers."""


@attrs.define(eq=False)
class RestartPause:
    """Pause before the next start of a hub. Pure: the caller tells the time."""

    _failures_count: int = 0
    _ready_since_seconds: float = math.inf

    def ready(self, now_seconds: float) -> None:
        """Note that the hub is ready."""
        self._ready_since_seconds = now_seconds

    def ended(self, now_seconds: float) -> float:
        """Note that the hub failed. Returns the seconds until it is to be started again."""
        if now_seconds - self._ready_since_seconds >= SOUND_SECONDS:
            self._failures_count = 0
        self._ready_since_seconds = math.inf
        pause_seconds = min(PAUSE_SECONDS_MIN * 2.0**self._failures_count, PAUSE_SECONDS_MAX)
        self._failures_count += 1
        return pause_seconds


class HubProcess:
    """Process of one hub, over all of its restarts."""

    def __init__(self, command: HubCommand, reports: socket.socket, address: str) -> None:
        """`reports`: datagram socket at `address`, to which the hub reports."""
        self.command = command
        self.state = HubState.ENDED
        self.status = ""
        """Status that the hub reported last: its addresses, once it is ready."""
        self.restarts_count = 0
        self.changed = trio.Event()
        """Set at the next change of `state`, and replaced then."""
        self._stale = reports
        self._reports = trio.socket.from_stdlib_socket(reports)
        self._address = address
        self._process: trio.Process | None = None
        self._pause = RestartPause()
        self._was_ready = False
        self._stop_wanted = False
        self._restart_wanted = False
        self._heard_at_seconds = 0.0

    @property
    def name(self) -> str:
        """Name of the hub."""
        return self.command.name

    @property
    def pid(self) -> int | None:
        """Id of the process that runs now."""
        return None if self._process is None else self._process.pid

    def is_stop_wanted(self) -> bool:
        """Return whether the hub was told to stop."""
        return self._stop_wanted

    async def run(self) -> None:
        """Keep the process running until `stop`. Raises StartFailedError, and OSError if it can't be started."""
        while not self.is_stop_wanted():
            code = await self._run_once()
            if self.is_stop_wanted():
                break
            if self._restart_wanted:
                self._restart_wanted = False
                continue
            if not self._was_ready:
                self.move(HubState.ENDED)
                raise StartFailedError(self.name, code)
            pause_seconds = self._pause.ended(trio.current_time())
            said = log.error if code else log.info  # 0: it was drained, or stopped by hand
            said(
                "hub ended", hub=self.name, why=_ended_how(code), remedy="its own last lines say why; it starts again",
                pause_seconds=pause_seconds, restarts=self.restarts_count,
            )  # fmt: skip
            self.restarts_count += 1
            self.move(HubState.WAITING)
            with trio.move_on_after(pause_seconds):
                await self._until(lambda: self._stop_wanted)
        self.move(HubState.ENDED)

    async def _run_once(self) -> int:
        self.move(HubState.STARTING)
        self._forget_reports()
        environment = {**os.environ, **self.command.environment, "NOTIFY_SOCKET": self._address}
        if self._was_ready:
            environment[HAS_RUN_VARIABLE] = "1"
        self._process = process = await trio.lowlevel.open_process(
            list(self.command.arguments),
            env=environment,
            pass_fds=tuple(self.command.descriptors),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the supervisor, which stops the hubs in order
        )
        log.info("hub starts", hub=self.name, pid=process.pid)
        self._heard_at_seconds = trio.current_time()
        if self._stop_wanted or self._restart_wanted:
            self._signal(signal.SIGTERM)  # asked for while the process was being made
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, process)
                nursery.start_soon(self._watch_silence, process)
                code = await process.wait()
                nursery.cancel_scope.cancel()
        except BaseException:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            raise
        finally:
            self._process = None
        return code

    async def _listen(self, process: trio.Process) -> None:
        """Take the reports of the hub."""
        while True:
            report = await self._reports.recv(REPORT_BYTES_MAX)
            fields = dict(line.partition("=")[::2] for line in report.decode(errors="replace").splitlines())
            self._heard_at_seconds = trio.current_time()
            if "STATUS" in fields:
                self.status = fields["STATUS"]
            if fields.get("STOPPING") == "1":
                self.move(HubState.STOPPING)
            elif fields.get("READY") == "1" and self.state is HubState.STARTING:
                self._was_ready = True
                self._pause.ready(trio.current_time())
                log.info("hub ready", hub=self.name, pid=process.pid, listeners=self.status)
                self.move(HubState.READY)

    def _forget_reports(self) -> None:
        """Drop what the process before has reported last."""
        while True:
            try:
                self._stale.recv(REPORT_BYTES_MAX)
            except BlockingIOError:
                return

    async def _watch_silence(self, process: trio.Process) -> None:
        """Kill a hub that is silent for too long. Reading of the store may take any time, so a start is not watched."""
        while True:
            began_seconds = trio.current_time()
            await trio.sleep(SILENCE_SECONDS / 4)
            now_seconds = trio.current_time()
            if now_seconds - began_seconds > SILENCE_SECONDS / 2:
                self._heard_at_seconds = now_seconds  # this process was paused, and the reports wait to be read
            silent_seconds = now_seconds - self._heard_at_seconds
            if self.state is HubState.READY:
                is_hung = silent_seconds > SILENCE_SECONDS
            else:
                is_hung = (self._stop_wanted or self._restart_wanted) and silent_seconds > STOP_SECONDS
            if is_hung:
                log.error("hub hangs: it is killed", hub=self.name, pid=process.pid, silent_seconds=silent_seconds)
                process.send_signal(signal.SIGABRT)
                with trio.move_on_after(5):
                    await process.wait()
                process.kill()

    def end_if_hung(self) -> None:
        """Kill a hub that the others do not hear any more, if it does not report either: its shards are theirs."""
        silent_seconds = trio.current_time() - self._heard_at_seconds
        if self._process is not None and self.state is HubState.READY and silent_seconds > HUNG_SECONDS:
            log.error("hub hangs: it is killed", hub=self.name, pid=self._process.pid, silent_seconds=silent_seconds)
            self._process.kill()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the hub; it is not started again. A second SIGTERM makes it cut its connections."""
        self._stop_wanted = True
        self._signal(number)
        self._wake()

    async def restart(self) -> bool:
        """Stop the hub in order, start it, and wait until it is ready. One that waits before its next start is started
        then. False: it ended, or fails to start.
        """
        if self._stop_wanted:
            return False
        if self._process is not None:
            self._restart_wanted = True
            self._signal(signal.SIGTERM)
        await self._until(lambda: self.state is HubState.STARTING or self._stop_wanted)
        await self._until(lambda: self.state is not HubState.STARTING)
        return self.state is HubState.READY

    async def ready(self) -> None:
        """Wait until the hub is ready, or has ended."""
        await self._until(lambda: self.state in (HubState.READY, HubState.ENDED))

    def kill(self) -> None:
        """End the process at once."""
        self.stop(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        self._heard_at_seconds = trio.current_time()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def move(self, state: HubState) -> None:
        """Change the state, and tell who waits for a change."""
        self.state = state
        self._wake()

    def _wake(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self.changed.wait()


def _ended_how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {SIGNAL_NAMES.get(-code, f'signal {-code}')}"


class HubProcesses:
    """All hubs of one host."""

    def __init__(self, commands: Sequence[HubCommand], folder: Path) -> None:
        """`folder`: private folder for the sockets of reports; see `private_folder`."""
        self._reports: list[socket.socket] = []
        self.is_stopping = False
        """Whether the hubs were told to stop."""
        self.is_restarting = False
        """Whether a rolling restart is under way."""
        self.ended = trio.Event()
        """Set when all hubs have ended."""
        self.hubs = [self._hub(command, folder / f"{command.name}.notify") for command in commands]

    def _hub(self, command: HubCommand, path: Path) -> HubProcess:
        reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._reports.append(reports)
        reports.setblocking(False)
        reports.bind(str(path))
        return HubProcess(command, reports, str(path))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all hubs until each is stopped. Starts them one after another the first time: what is wrong with the
        configuration or the data is said once. Raises StartFailedError; then all others are stopped, too.
        """
        failed: list[StartFailedError] = []

        async def run(hub: HubProcess) -> None:
            try:
                await hub.run()
            except StartFailedError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                for hub in self.hubs:
                    if self.is_stopping:
                        break
                    hub.move(HubState.STARTING)
                    nursery.start_soon(run, hub)
                    await hub.ready()
                if not failed:
                    task_status.started()
        finally:
            self.ended.set()
            for reports in self._reports:
                reports.close()
        if failed:
            raise failed[0]

    def end_if_hung(self, name: str) -> None:
        """Kill a hub whose session has ended in time, if it is silent here, too: it may hold its shards' folders."""
        for hub in self.hubs:
            if hub.name == name:
                hub.end_if_hung()

    def stop(self) -> None:
        """Stop all hubs in order; called again, cut their connections."""
        self.is_stopping = True
        for hub in self.hubs:
            hub.stop()

    async def restart_in_turn(self) -> bool:
        """Restart one hub after another. False: one did not become ready, and those behind it were left alone."""
        self.is_restarting = True
        try:
            for hub in self.hubs:
                if not await hub.restart():
                    log.error("rolling restart ends here", hub=hub.name, remedy="see the last lines of this hub")
                    return False
        finally:
            self.is_restarting = False
        log.info("rolling restart done", hubs=len(self.hubs))
        return True


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that only this user may enter, for the sockets between supervisor and hubs. Their paths have to be
    short: a Unix socket's has 107 bytes at most.
    """
    return tempfile.TemporaryDirectory(prefix="sluiceway-")
