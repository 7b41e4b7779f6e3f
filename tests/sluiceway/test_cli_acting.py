"""Commands that act on a running broker over its admin port, and completion."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from sluiceway import EmbeddedBroker
from sluiceway.cli import main
from sluiceway.cli.completion import SHELLS, VARIABLE
from sluiceway.client.address import Address
from sluiceway.client.link import Link
from sluiceway.config import Config, Listener
from sluiceway.config.admin import AdminConfig

pytestmark = pytest.mark.interop

FREE_PORT = (Listener(address="127.0.0.1:0"),)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    config = attrs.evolve(Config(), admin=AdminConfig(address="127.0.0.1:0"), listeners=FREE_PORT)
    with EmbeddedBroker(config) as running:
        yield running


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    urls = broker.call(lambda inner: [] if inner.admin is None else inner.admin.urls)
    return CliRunner(env={"SLUICEWAY_URL": broker.url, "SLUICEWAY_ADMIN_URL": urls[0]}).invoke(main, list(arguments))


def destination(broker: EmbeddedBroker, name: str) -> dict[str, Any]:
    """The row of a destination."""
    report = json.loads(run(broker, "stat", "--json").stdout)
    return next(dict(row) for row in report["destinations"] if row["name"] == name)


def test_a_purge_drops_what_waits(broker: EmbeddedBroker) -> None:
    run(broker, "send", "/queue/a", "x", "--count", "3")
    result = run(broker, "purge", "/queue/a", "--yes")
    assert (result.exit_code, result.stdout) == (0, "3 messages of /queue/a dropped.\n")
    assert destination(broker, "/queue/a")["depth_count"] == 0


def test_names_are_those_of_other_commands(broker: EmbeddedBroker) -> None:
    run(broker, "send", "a", "x")
    assert run(broker, "purge", "a", "--yes").stdout == "1 message of /queue/a dropped.\n"
    slip = run(broker, "purge", "queue/a", "--yes")
    assert slip.exit_code == 2 and "did you mean /queue/a" in slip.stderr.replace("\n", " ")
    slip = run(broker, "send", "topic/a", "x")
    assert slip.exit_code == 5 and "did you mean /topic/a" in slip.stderr
    empty = run(broker, "send", "", "x")
    assert empty.exit_code == 2 and "it is empty: name one" in empty.stderr


def test_without_a_terminal_a_purge_wants_yes(broker: EmbeddedBroker) -> None:
    run(broker, "send", "/queue/a", "x")
    result = run(broker, "purge", "/queue/a")
    assert result.exit_code == 2 and "--yes" in result.stderr
    assert destination(broker, "/queue/a")["depth_count"] == 1


def test_messages_are_moved_and_dead_letters_go_back(broker: EmbeddedBroker) -> None:
    run(broker, "send", "/queue/a", "x", "--count", "2")
    assert (
        "2 messages moved from /queue/a to /queue/b"
        in run(broker, "move", "/queue/a", "/queue/b", "--all", "--yes").stdout
    )
    answer = json.loads(run(broker, "retry", "/queue/b", "--all", "--yes", "--json").stdout)
    assert answer["done"]["skipped_count"] == 2, "they do not say where they came from"
    result = run(broker, "move", "/queue/b", "/queue/c")
    assert result.exit_code == 2 and "--all" in result.stderr


def test_pause_and_resume(broker: EmbeddedBroker) -> None:
    run(broker, "send", "/queue/a", "x")
    assert run(broker, "pause", "/queue/a").exit_code == 0
    assert destination(broker, "/queue/a")["paused"]
    assert run(broker, "resume", "/queue/a").exit_code == 0
    assert not destination(broker, "/queue/a")["paused"]


def test_limits_are_shown_changed_and_as_configured_again(broker: EmbeddedBroker) -> None:
    run(broker, "send", "/queue/a", "x")
    assert run(broker, "limit", "/queue/a").stdout.splitlines()[0].split() == ["count_max", "none"]
    result = run(broker, "limit", "/queue/a", "--count-max", "500", "--bytes-max", "2GiB", "--yes")
    assert result.exit_code == 0 and "count_max of /queue/a is 500 now, after none." in result.stdout
    assert destination(broker, "/queue/a")["changed_limits"] == {
        "count_max": {"value": 500, "configured": None},
        "bytes_max": {"value": 2 << 30, "configured": None},
    }
    shown = run(broker, "limit", "/queue/a").stdout
    assert "count_max     500  changed at run time; configured: none" in shown
    assert "limits of /queue/a changed at run time: count_max 500 (configured: none)" in run(broker, "stat").stdout
    assert json.loads(run(broker, "limit", "/queue/a", "--json").stdout)["limits"]["count_max"] == 500
    result = run(broker, "limit", "/queue/a", "--configured", "--yes")
    assert result.exit_code == 0 and "All limits are as configured." in result.stdout
    assert destination(broker, "/queue/a")["changed_limits"] == {}


def test_a_limit_that_is_none_is_refused_in_words(broker: EmbeddedBroker) -> None:
    run(broker, "send", "/queue/a", "x")
    result = run(broker, "limit", "/queue/a", "--count-max", "lots", "--yes")
    assert result.exit_code != 0 and "is not a number of messages" in result.stderr
    assert run(broker, "limit", "/queue/a", "--count-max", "5").exit_code == 2
    assert run(broker, "limit", "/queue/a", "--configured", "--count-max", "5").exit_code == 2


def test_a_connection_is_closed_by_its_session(broker: EmbeddedBroker) -> None:
    with Link(Address.parse(broker.url)) as link:
        result = run(broker, "close", link.session, "--yes")
        assert result.exit_code == 0 and "is closed" in result.stdout
        link.cut()
    assert run(broker, "close", "nobody", "--yes").exit_code == 5


def test_a_refusal_ends_with_5_and_the_brokers_words(broker: EmbeddedBroker) -> None:
    result = run(broker, "pause", "/queue/never")
    assert result.exit_code == 5
    assert "there is no destination '/queue/never' now" in result.stderr


def test_a_slip_in_a_name_gets_the_one_that_is_meant(broker: EmbeddedBroker) -> None:
    run(broker, "send", "/queue/a", "x")
    result = run(broker, "purge", "/queu/a", "--yes")
    assert result.exit_code == 5 and "Did you mean /queue/a?" in result.stderr
    result = run(broker, "move", "/queue/a", "/queu/b", "--all", "--yes")
    assert result.exit_code == 5 and "did you mean /queue/b?" in result.stderr
    assert destination(broker, "/queue/a")["depth_count"] == 1


def test_no_admin_port_ends_with_4_and_a_remedy(broker: EmbeddedBroker) -> None:
    result = run(broker, "pause", "/queue/a", "--admin-url", broker.url.replace("stomp", "http"))
    assert result.exit_code == 4 and "--admin-url" in result.stderr


def test_drain_ends_the_broker() -> None:
    config = attrs.evolve(Config(), admin=AdminConfig(address="127.0.0.1:0"), listeners=FREE_PORT)
    with EmbeddedBroker(config) as running:
        result = run(running, "drain", "--seconds", "1", "--yes")
    assert result.exit_code == 0 and "takes no new connections" in result.stdout


# -- completion --------------------------------------------------------------------------------------------------------


def completed(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, arguments: list[str], begun: str) -> list[str]:
    monkeypatch.setenv("SLUICEWAY_URL", broker.url)
    items = ShellComplete(main, {}, "sluiceway", VARIABLE).get_completions(arguments, begun)
    return [item.value for item in items]


def test_commands_and_destinations_are_completed(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("/queue/orders", "/queue/others", "/topic/prices"):
        run(broker, "send", name, "x")
    assert completed(broker, monkeypatch, [], "pu") == ["purge"]
    assert completed(broker, monkeypatch, ["purge"], "/queue/o") == ["/queue/orders", "/queue/others"]
    assert completed(broker, monkeypatch, ["send"], "/topic/") == ["/topic/prices"]
    assert completed(broker, monkeypatch, ["receive"], "/qu") == ["/queue/orders", "/queue/others"]


def test_without_a_broker_the_prefixes_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_URL", "stomp://127.0.0.1:1")
    items = ShellComplete(main, {}, "sluiceway", VARIABLE).get_completions(["send"], "/to")
    assert [item.value for item in items] == ["/topic/"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_one(shell: str, tmp_path: Path) -> None:
    """By the shell itself, where it is there."""
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and VARIABLE in result.stdout
    program = shutil.which(shell)
    if program is not None:
        file = tmp_path / "script"
        file.write_text(result.stdout, encoding="utf-8")
        subprocess.run([program, "-n", str(file)], check=True, timeout=30)
