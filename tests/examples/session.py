"""Plays the shell sessions of a page in order, the way its reader would, in an empty folder.

As printed, but for these: `sluiceway`, `scripts/serve` and the Python of `.venv` are this checkout's, whatever
environment the tests run in, or those of an environment that Sluiceway is installed in; brokers listen on a free port,
which takes the place of 61613. What a command prints is
compared with numbers, sizes and durations masked; `...` stands for any text, alone on a line for any lines.

A command that ends with `&` stays; the next one starts when the broker has heard of it. `sluiceway stat` is asked again
until it shows what the page says, for a while: the reader is not as fast as a program. `kill` is for the page's own
broker only.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from sluiceway.client.address import Address
from sluiceway.client.link import Link
from tests.architecture.sources import ROOT
from tests.examples.pages import Block, Command

PATIENCE_SECONDS: Final = 40.0
COMMAND_SECONDS_MAX: Final = 240.0
"""Spark takes some seconds to start, and minutes on a machine that does ten other things."""
PORT: Final = "61613"
TLS_PORT: Final = "61614"
"""Stands for the same, of a broker that is started with TLS."""
KILL: Final = "kill -9 $(cut -d' ' -f1 sluiceway-data/lock)"
_NUMBER: Final = re.compile(r"\d[\d.,]*(?: (?:B|[KMG]iB|ms|s|min|h)\b)?")
_CHAINS: Final = re.compile(r"(?:^  \w+ .* waits on .*\n)+", re.MULTILINE)


def masked(text: str) -> str:
    """The text with what differs from run to run made equal: numbers, sizes, durations; whether a window is just full
    or already draining; which of several chains of `stat` is the oldest; blanks at the ends of lines.
    """
    text = re.sub(r"[ \t]+$", "", _NUMBER.sub("N", text), flags=re.MULTILINE).replace("draining to N", "full")
    return _CHAINS.sub(lambda lines: "".join(sorted(lines[0].splitlines(keepends=True))), text)


def shows(actual: str, expected: str) -> bool:
    """Whether a command printed what the page says."""
    pattern = ""
    for line in masked(expected).splitlines():
        pattern += r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
    if actual and not actual.endswith("\n"):
        actual += "\n"
    return re.fullmatch(pattern, masked(actual)) is not None


class Session:
    """A folder, and perhaps a broker, in which commands are played. A context manager: it ends what it started."""

    def __init__(self, folder: Path, commands: Path | None = None) -> None:
        """`commands`: folder of the commands of an environment with Sluiceway; None: commands of this checkout."""
        self._folder = folder
        self._port = ""
        self._server: subprocess.Popen[str] | None = None
        self._background: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._compared_count: dict[Path, int] = {}
        """Of what each of them printed: how many characters were compared with the page."""
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLUICEWAY_", "PYTEST_", "COLUMNS", "FORCE_COLOR"))
        }
        self._environment |= {
            "PATH": f"{commands or folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SLUICEWAY_LISTENERS": "127.0.0.1:0",
            "NO_COLOR": "1",
        }
        if commands is not None:
            del self._environment["PYTHONPATH"]
            return
        self._stand_in(".venv/bin/python", "")
        self._stand_in(".venv/bin/sluiceway", "-m sluiceway")
        self._stand_in("scripts/serve", "-m sluiceway serve")

    def _stand_in(self, name: str, arguments: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n', encoding="utf-8")
        path.chmod(0o755)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, _output in self._background:
            _end(process, signal.SIGKILL)
        if self._server is not None:
            code = _end(self._server, signal.SIGINT)
            assert kind is not None or code == 0, f"the broker ended with exit code {code}"

    def play(self, block: Block) -> None:
        """Do what the block says. AssertionError where it does not happen."""
        if block.kind == "file":
            (self._folder / block.file_name).write_text(self._with_port(block.text), encoding="utf-8")
        elif block.kind == "server":
            [command] = block.commands
            self._serve(command)
        elif block.kind in ("session", "offline"):
            if block.kind == "offline":
                self._end_server()
            commands = block.commands
            for command in commands:
                if command.text.endswith("&"):
                    self._leave_running(command)
                elif command.text == KILL:
                    self._kill(command)
                else:
                    self._run(command)

    def _with_port(self, text: str) -> str:
        return text.replace(PORT, self._port).replace(TLS_PORT, self._port) if self._port else text

    # ------------------------------------------------------------------ commands

    def _run(self, command: Command) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        text = self._with_port(command.text)
        again = text.split()[0].endswith("sluiceway") and text.split()[1] == "stat"
        done = self._shell(text)
        while not shows(said := done.stdout + self._background_output(), command.expected):
            where = f"line {command.line_number}: `{command.text}`"
            assert time.monotonic() < deadline, f"{where} printed\n{said}\nbut the page says\n{command.expected}"
            assert again or self._background, f"{where} printed\n{said}\nbut the page says\n{command.expected}"
            time.sleep(0.05)
            if again:
                done = self._shell(text)
        assert done.returncode == 0, f"line {command.line_number}: `{command.text}`: exit code {done.returncode}"
        for _process, output in self._background:
            self._compared_count[output] = len(output.read_text(encoding="utf-8"))

    def _kill(self, command: Command) -> None:
        server, self._server = self._server, None
        assert server is not None, f"line {command.line_number}: there is no broker to kill"
        lock = self._folder / "sluiceway-data" / "lock"
        assert lock.read_text(encoding="utf-8").split()[0] == str(server.pid), "somebody else's broker"
        assert not self._shell(command.text).stdout
        assert _end(server, signal.SIGKILL) == -signal.SIGKILL

    def _shell(self, text: str) -> subprocess.CompletedProcess[str]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", text],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _nothing = process.communicate(timeout=COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGKILL)  # and the Java that it may have started
            raise
        return subprocess.CompletedProcess(text, process.returncode, said)

    def _background_output(self) -> str:
        return "".join(
            output.read_text(encoding="utf-8")[self._compared_count.get(output, 0) :]
            for _process, output in self._background
        )

    def _leave_running(self, command: Command) -> None:
        assert not command.expected, f"line {command.line_number}: what it prints comes later"
        before_count = self._clients_count()
        output = self._folder / f"output-{len(self._background)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._with_port(command.text).rstrip("& ")],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append((process, output))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._clients_count() <= before_count:
            assert time.monotonic() < deadline, f"line {command.line_number}: the broker never heard of it"
            time.sleep(0.05)

    def _clients_count(self) -> int:
        """Connections that have subscribed or sent something."""
        with Link(Address("127.0.0.1", int(self._port))) as link:
            connections = link.ask("stat")["connections"]
        return sum(1 for row in connections if row["subscriptions_count"] or row["in_count"]) - 1

    # ------------------------------------------------------------------ brokers

    def _serve(self, command: Command) -> None:
        self._end_server()
        with (self._folder / "broker.log").open("ab") as log:
            self._server = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command.text.replace(TLS_PORT, '0')}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        line = _first_line(self._server)
        assert shows(line, command.expected), f"line {command.line_number}: `{command.text}` printed {line!r}"
        self._port = line.strip().rpartition(":")[2]
        self._environment["SLUICEWAY_URL"] = f"stomp://127.0.0.1:{self._port}"

    def _end_server(self) -> None:
        """As with Ctrl-C."""
        server, self._server = self._server, None
        if server is not None:
            code = _end(server, signal.SIGINT)
            assert code == 0, f"the broker ended with exit code {code}"


def _first_line(process: subprocess.Popen[str]) -> str:
    lines: queue.Queue[str] = queue.Queue()
    out = process.stdout
    assert out is not None
    threading.Thread(target=lambda: lines.put(out.readline()), daemon=True).start()  # a pipe has no deadline
    return lines.get(timeout=PATIENCE_SECONDS)


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes], signal_number: int) -> int:
    """Ends it and all that it started; returns its exit code."""
    if process.poll() is None or signal_number == signal.SIGKILL:
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            pass  # the whole group is gone already
    try:
        code = process.wait(PATIENCE_SECONDS)
    finally:
        if process.stdout is not None:
            process.stdout.close()
    return code
