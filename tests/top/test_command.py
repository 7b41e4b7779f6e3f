"""`sluiceway top` as a command: in a real terminal, in a pipe, and where it can't run."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from perf.peers.daemon import free_port
from sluiceway.cli import main
from tests.sluiceway.broker_process import BrokerProcess, command, environment
from tests.sluiceway.scripted_broker import ScriptedBroker, frame

SECONDS_MAX = 30.0


class Terminal:
    """A command in a pseudo-terminal of 80×24."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            command(*arguments), stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**environment(), "TERM": "xterm-256color", **variables},
        )  # fmt: skip
        os.close(slave)
        self.said = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait(SECONDS_MAX)
        os.close(self._master)

    def read_until(self, text: bytes) -> None:
        """Until that was written (since the last call). Drops what came."""
        end = time.monotonic() + SECONDS_MAX
        while text not in self.said:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} was not written in time, but {self.said[-2000:]!r}"
            try:
                more = os.read(self._master, 65536)
            except OSError:  # what Linux says when the other end is closed
                more = b""
            assert more, f"it ended without {text!r}: {self.said[-2000:]!r}"
            self.said += more
        self.said = self.said.partition(text)[2]

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        """Its exit code."""
        end = time.monotonic() + SECONDS_MAX
        while self.process.poll() is None:
            # Somebody has to read, or it can't write its last words.
            self._read_what_comes(0.05)
            assert time.monotonic() < end, "it does not end"
        while self._read_what_comes(0.0):
            pass  # what it wrote just before it ended
        return self.process.wait(SECONDS_MAX)

    def _read_what_comes(self, patience_seconds: float) -> bool:
        if not select.select([self._master], [], [], patience_seconds)[0]:
            return False
        try:
            more = os.read(self._master, 65536)
        except OSError:  # what Linux says when the other end is closed
            time.sleep(patience_seconds)
            return False
        self.said += more
        return bool(more)


@pytest.mark.interop
@pytest.mark.timeout(120)
def test_in_a_real_terminal_it_lives_through_a_broker_that_goes_and_comes_back(tmp_path: Path) -> None:
    """And leaves the terminal as it found it."""
    address = f"127.0.0.1:{free_port()}"
    with (
        BrokerProcess(tmp_path, listen=address) as broker,
        Terminal("top", "--url", f"stomp://{address}", "--interval", "0.2", NO_COLOR="1") as top,
    ):
        top.read_until(b"\x1b[?1049h")  # the other screen
        top.read_until(b"nothing is blocked")
        top.type(b"?")
        top.read_until(b"why is it blocked?")
        top.type(b"\x1b")
        broker.kill()
        top.read_until(b"no answer")
        with BrokerProcess(tmp_path, listen=address):
            top.read_until(b"by depth")
            top.type(b"\x03")
            assert top.end() == 0
        assert b"\x1b[?1049l" in top.said
        assert b"Traceback" not in top.said


def test_a_broker_that_is_not_there_is_told_before_the_screen_is_taken() -> None:
    with Terminal("top", "--url", "stomp://127.0.0.1:1") as top:
        top.read_until(b"no broker answers at stomp://127.0.0.1:1")
        assert top.end() == 4
        assert b"\x1b[?1049h" not in top.said


def test_a_terminal_that_can_not_be_drawn_on_is_told_another_way() -> None:
    with Terminal("top", TERM="dumb") as top:
        top.read_until(b"sluiceway top --once")
        assert top.end() == 2


def test_without_a_terminal_it_names_the_other_ways() -> None:
    result = CliRunner().invoke(main, ["top"])
    assert result.exit_code == 2
    assert "top needs a terminal: try `sluiceway top --once`, or --json for programs" in result.stderr


def scripted(*, refuses: bool = False) -> ScriptedBroker:
    """Its counters grow by 100 from answer to answer, which are a second apart by its clock."""
    asked = 0

    def answer(name: str, _headers: object, _body: bytes) -> bytes | None:
        nonlocal asked
        if refuses and name in ("CONNECT", "STOMP"):
            return frame("ERROR", {"message": "access refused"})
        if name != "SEND":
            return None
        asked += 1
        report = {
            "taken_at": float(asked),
            "broker": {"name": "b", "version": "1", "uptime_seconds": float(asked)},
            "destinations": [{"name": "/queue/a", "added_count": 100 * asked, "depth_count": 100 * asked}],
            "bottlenecks": [{"words": "queue /queue/a blocks 1 flow, for 9 s", "oldest_seconds": 9.0}],
        }
        body = json.dumps(report).encode()
        return frame("MESSAGE", {"destination": "x", "message-id": "1", "subscription": "1"}, body)

    return ScriptedBroker(answer)


def test_once_prints_rates_and_ends() -> None:
    with scripted() as broker:
        result = CliRunner().invoke(main, ["top", "--once", "--interval", "0.1", "--url", broker.url])
    assert result.exit_code == 0, result.output
    assert "in 100/s" in result.stdout
    assert "! queue /queue/a blocks 1 flow" in result.stdout
    [row] = [line for line in result.stdout.splitlines() if line.startswith("/queue/a")]
    assert row.split()[1] == "100"


def test_json_is_for_programs() -> None:
    with scripted() as broker:
        result = CliRunner().invoke(main, ["top", "--once", "--json", "--interval", "0.1", "--url", broker.url])
    data = json.loads(result.stdout)
    assert data["head"]["in_per_second"] == 100.0
    assert data["bottlenecks"] == [{"age_seconds": 9.0, "words": "queue /queue/a blocks 1 flow, for 9 s"}]
    [row] = data["destinations"]
    assert (row["name"], row["in_per_second"], row["oldest"]) == ("/queue/a", 100.0, {"seconds": 1.0, "at_least": True})


def test_a_refused_login_ends_with_5() -> None:
    with scripted(refuses=True) as broker:
        result = CliRunner().invoke(main, ["top", "--once", "--url", broker.url])
    assert result.exit_code == 5
    assert "access refused" in result.stderr


@pytest.mark.parametrize("other", ["send", "stat", "serve"])
def test_other_commands_do_not_load_the_terminal(other: str) -> None:
    """Textual takes a third of a second."""
    said = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom sluiceway.cli import main\nmain.get_command(None, {other!r})\n"
         "print([name for name in sys.modules if name.split('.')[0] in ('textual', 'rich')])"],
        env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == "[]"
