"""The commands against a real broker: what the scripted one can't show."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluiceway import EmbeddedBroker
from sluiceway.cli import main
from sluiceway.client.address import Address
from sluiceway.client.link import Link

pytestmark = pytest.mark.interop


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    return CliRunner(env={"SLUICEWAY_URL": broker.url}).invoke(main, list(arguments))


def test_what_was_sent_is_received_once_and_in_order(broker: EmbeddedBroker) -> None:
    for body in ("one", "two", "three"):
        assert run(broker, "send", "/queue/a", body).exit_code == 0
    assert run(broker, "receive", "/queue/a", "--count", "1").stdout == "one\n"
    assert run(broker, "receive", "/queue/a", "--count", "2").stdout == "two\nthree\n"
    assert run(broker, "receive", "/queue/a", "--count", "1", "--timeout", "0").exit_code == 1


def test_a_file_that_is_sent_again_adds_nothing_twice(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """By the number of the line, and by a column of it; more is sent the second time, as after an interruption."""
    file = tmp_path / "orders.csv"
    by_line = ("send", "/queue/a", "--lines", "--file", str(file), "--producer-id", "o")
    by_name = (*by_line[:-1], "p", "--sequence-column", "id")
    for rows in (["2;two", "5;five"], ["2;two", "5;five", "7;seven"]):
        file.write_text("\r\n".join(["id;name", *rows]))
        assert run(broker, *by_line).exit_code == 0
        assert run(broker, *by_name, "--separator", ";").exit_code == 0
    got = run(broker, "receive", "/queue/a", "--count", "7").stdout
    assert sorted(got.split()) == sorted(["id;name", *["2;two", "5;five", "7;seven"] * 2])
    assert run(broker, "send", "/queue/a", "--producer-id", "p", "--sequence", "7", "seven").exit_code == 0
    assert run(broker, "browse", "/queue/a").stdout == ""
    file.write_text("id,x\n1,a\n3,b\n3,c\n")
    refused = run(broker, *by_name[:-3], "q", *by_name[-2:])
    assert refused.exit_code == 2
    assert "line 4: 3 in column id is not above 3" in refused.stderr and "Sent before it: 2 lines" in refused.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lines", "x"], "leave out BODY"),
        (["--producer-id", "p", "x"], "add --sequence, or --lines"),
        (["--sequence", "1", "x"], "add --producer-id"),
        (["--producer-id", "p", "--sequence", "1", "--sequence-column", "1", "x"], "without --sequence"),
    ],
)
def test_options_of_numbers_are_checked(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["send", "/queue/a", *options])
    assert result.exit_code == 2 and said in result.stderr


def test_browsing_shows_what_is_there_and_leaves_it(broker: EmbeddedBroker) -> None:
    """More than the prefetch; also a part of it only, though the rest is on its way."""
    assert run(broker, "browse", "/queue/a").stdout == ""
    assert run(broker, "send", "/queue/a", "x" * 100, "--count", "3000").exit_code == 0
    for _ in range(2):
        result = run(broker, "browse", "/queue/a")
        assert result.exit_code == 0, result.output
        assert result.stdout == ("x" * 100 + "\n") * 3000
    assert run(broker, "browse", "/queue/a", "--count", "2").stdout == ("x" * 100 + "\n") * 2
    assert len(run(broker, "receive", "/queue/a", "--count", "3000").stdout) == 101 * 3000
    refused = run(broker, "browse", "/topic/t")
    assert refused.exit_code == 5
    assert "is a topic" in refused.stderr


def test_a_selector_takes_some_and_leaves_the_rest(broker: EmbeddedBroker) -> None:
    for size in ("3", "12", "7"):
        run(broker, "send", "/queue/a", "-H", f"size:{size}", size)
    assert run(broker, "browse", "/queue/a", "--selector", "size < 10").output == "3\n7\n"
    assert run(broker, "receive", "/queue/a", "--count", "1", "--selector", "size > 10").output == "12\n"
    assert run(broker, "browse", "/queue/a").output == "3\n7\n"
    wrong = run(broker, "receive", "/queue/a", "--selector", "size > ")
    assert wrong.exit_code == 5
    assert "line 1, column 7" in wrong.output
    assert "size > \n      ^" in wrong.output


def test_stat_shows_what_a_queue_holds(broker: EmbeddedBroker) -> None:
    assert run(broker, "send", "/queue/a", "x", "--count", "7").exit_code == 0
    report = json.loads(run(broker, "stat", "--json").stdout)
    [queue] = [row for row in report["destinations"] if row["name"] == "/queue/a"]
    assert queue["depth_count"] == 7
    result = run(broker, "stat")
    assert result.stdout.count("(this one)") == 1
    assert result.exit_code == 0
    assert "nothing is blocked" in result.stdout
    assert "/queue/a" in result.stdout


def test_a_report_is_never_older_than_the_connection_that_asked(broker: EmbeddedBroker) -> None:
    for _ in range(30):
        with Link(Address.parse(broker.url)) as link:
            assert link.session in {row["session"] for row in link.ask("stat")["connections"]}


def test_a_refusal_ends_with_5_and_the_brokers_words(broker: EmbeddedBroker) -> None:
    result = run(broker, "send", "/topic/*", "x")
    assert result.exit_code == 5
    assert "wildcard" in result.stderr


def test_serve_says_where_it_listens_and_ends_in_good_order_on_sigterm(tmp_path: Path) -> None:
    """A second one on the same port says that it is taken, and ends with 3."""
    command = [sys.executable, "-m", "sluiceway", "serve", "--data", str(tmp_path / "data"), "--listen"]
    with subprocess.Popen(
        [*command, "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        try:
            ready, _space, url = first.stdout.readline().rpartition(" ")
            assert ready == "sluiceway ready:"
            address = url.strip().removeprefix("stomp://")
            second = subprocess.run([*command, address], capture_output=True, text=True, timeout=30, check=False)
            assert second.returncode == 3
            assert f"cannot listen on {address}" in second.stderr
            assert "is taken by another program" in second.stderr
            first.send_signal(signal.SIGTERM)
            assert first.wait(timeout=30) == 0
        finally:
            first.kill()
    assert (tmp_path / "data" / "format").exists(), "a server keeps a store"
