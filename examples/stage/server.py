"""A broker of the demonstration: `sluiceway serve` as a process of its own, with small limits that are soon reached.

Started in a session of its own, so that Ctrl-C on the terminal reaches the demonstration only, which then stops the
broker cleanly. The log of the broker goes to a file in its data folder and is read again for the verdict.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from sluiceway.store.folders import make_private_folder

START_SECONDS_MAX: Final = 20.0
STOP_SECONDS_MAX: Final = 10.0
HUBS_FACTOR: Final = 3
"""Times that a cluster may take so long."""
READY: Final = "sluiceway ready: stomp://"
ROOT: Final = Path(__file__).resolve().parents[2]

CONFIGURATION: Final = """\
# The broker of the demonstration: limits so small that they are reached while you watch.

[broker]
name = "demo"
shutdown_seconds = 3

[[listeners]]
address = "127.0.0.1:0"

[listeners.limits]
outbound_bytes_max = "64 KiB"    # little may wait for a client that does not read

[[destinations]]
match = "/topic/prices"
memory_bytes = "1 MiB"
bytes_max = "1 MiB"              # a subscriber that lags by more loses the oldest prices, and is told how many

[[destinations]]
match = "/queue/parcels"
memory_bytes = "256 KiB"
paging = "throttle"              # nothing goes to disk: senders wait, and nothing is lost

[[destinations]]
match = "/queue/backlog"
memory_bytes = "4 MiB"           # the rest goes to disk

[[destinations]]
match = "/queue/tasks"
redeliveries_max = 2             # a task that has failed three times is put aside
dead_letter = "/queue/tasks-put-aside"
"""


class ServerError(Exception):
    """The broker did not start, or not in time; says where its log is."""


class Server:
    """A running broker, from `with` to its end."""

    def __init__(self, data_dir: Path, *, fresh: bool = True, port: int = 0, hubs_count: int = 0) -> None:
        """Prepare a broker. `data_dir`: gets `demo.toml`, `broker.log` and in `store` the broker's data; made if it is
        missing. `fresh`: delete the data of an earlier broker; False: continue with them. `port`: 0: a free one.
        `hubs_count`: processes that share the work; 0: one, without a supervisor.
        """
        self.log = data_dir / "broker.log"
        self.host, self.port = "", 0
        self.exit_code: int | None = None
        """Exit code of the process; None while it runs."""
        self._data_dir = data_dir
        self._fresh = fresh
        self._asked_port = port
        self._hubs_count = hubs_count
        self._ending: set[str] = set()

    def __enter__(self) -> Server:
        """Start it and wait until clients can connect. Raises ServerError."""
        make_private_folder(self._data_dir)  # its parent may become the folder of a plain `sluiceway serve`
        file = self._data_dir / "demo.toml"
        file.write_text(CONFIGURATION.replace("127.0.0.1:0", f"127.0.0.1:{self._asked_port}"), encoding="utf-8")
        store = self._data_dir / "store"
        if self._fresh:
            shutil.rmtree(store, ignore_errors=True)
        command = [sys.executable, "-m", "sluiceway", "serve", "--config", str(file), "--data", str(store)]
        if self._hubs_count:
            command += ["--hubs", str(self._hubs_count)]
        # From the checkout it is found without being installed; other SLUICEWAY_ settings do not belong here.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEWAY_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.log.open("wb" if self._fresh else "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
                start_new_session=True,
            )
        try:
            self.host, self.port = self._address()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def _address(self) -> tuple[str, int]:
        lines: queue.Queue[str] = queue.Queue()
        assert self._process.stdout is not None
        start_seconds_max = START_SECONDS_MAX * (HUBS_FACTOR if self._hubs_count else 1)
        # A pipe has no deadline of its own.
        threading.Thread(
            target=lambda out: lines.put(out.readline()), args=(self._process.stdout,), daemon=True
        ).start()
        try:
            line = lines.get(timeout=start_seconds_max)
        except queue.Empty:
            raise ServerError(f"the broker was not ready in {start_seconds_max:g} s; see {self.log}") from None
        if not line.startswith(READY):
            said = self.log.read_text(encoding="utf-8", errors="replace").strip()
            raise ServerError(f"the broker did not start; it said: {said or line!r}")
        host, _colon, port = line.removeprefix(READY).strip().rpartition(":")
        return host.strip("[]"), int(port)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and if that does not help in time, SIGKILL. Sets `exit_code`. A second call does nothing."""
        if self.exit_code is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self._process.wait(STOP_SECONDS_MAX * (HUBS_FACTOR if self._hubs_count else 1))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.exit_code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write anything. Sets `exit_code`."""
        self._process.kill()
        self.exit_code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def expects_end_of(self, hub: str) -> None:
        """Note that the show kills a hub: that the supervisor says so is no complaint."""
        self._ending.add(hub)

    def complaints(self) -> list[str]:
        """Return the errors in the broker's log. Lines that are not of the log (a traceback) count as well."""
        found = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                said = json.loads(line)
                level = said["level"]
                if said["event"] == "hub ended" and said["hub"] in self._ending:
                    continue
            except (ValueError, KeyError, TypeError):
                level = "error"
            if level not in ("debug", "info", "warning"):
                found.append(line)
        return found
