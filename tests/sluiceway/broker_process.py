"""`sluiceway serve` as a process of its own, for what only a process can show: signals, exit codes, limits, memory."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS: Final = 30.0
READY: Final = b"sluiceway ready: "


def command(*arguments: str) -> list[str]:
    """The command line of this checkout."""
    return [sys.executable, "-m", "sluiceway", *arguments]


def environment() -> dict[str, str]:
    """This one, without settings for a broker and with the checkout importable from everywhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEWAY_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


class BrokerProcess:
    """A broker on a free port of the loop-back interface. A context manager that kills it if it still runs."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        listen: str | None = "127.0.0.1:0",
        open_files_max: int | None = None,
        ready_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """Start it in `folder`, where its log goes as well, and wait until it is ready. `listen`: None leaves it to the
        configuration.
        """
        self._ready_seconds = ready_seconds
        self.log_path = folder / f"broker-{time.monotonic_ns()}.log"
        run = command("serve", *(() if listen is None else ("--listen", listen)), "--log-format", "json", *arguments)
        if open_files_max is not None:
            run = ["sh", "-c", f'ulimit -n {open_files_max} && exec "$@"', "sh", *run]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                run, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL
            )
        try:
            self.address = self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self) -> tuple[str, int]:
        said = b""
        assert self.process.stdout is not None
        end = time.monotonic() + self._ready_seconds
        while b"\n" not in said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"not ready in time; it said {said!r} and {self.log!r}"
            more = os.read(self.process.stdout.fileno(), 4096)
            assert more, f"it ended before it was ready: {self.log}"
            said += more
        line = said.partition(b"\n")[0]
        assert line.startswith(READY), line
        host, _colon, port = line.decode().partition("://")[2].partition("/")[0].rpartition(":")
        return host, int(port)

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Until it ended; its exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        """kill -9, and wait until it is gone. Does nothing to one that ended."""
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def log(self) -> str:
        """What it wrote to standard error so far."""
        return self.log_path.read_text(encoding="utf-8")

    def rss_bytes(self) -> int:
        """Its resident memory. Linux only."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def open_files_count(self) -> int:
        """Its file descriptors. Linux only."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))
