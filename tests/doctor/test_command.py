"""`sluiceway doctor` as a command: table, JSON, exit codes, and beside a running broker."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluiceway.cli import main
from sluiceway.config import Config, Listener
from sluiceway.embedded import EmbeddedBroker
from tests.sluiceway.broker_process import BrokerProcess
from tests.sluiceway.scripted_broker import ScriptedBroker, frame


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env={"SLUICEWAY_LISTENERS": "127.0.0.1:0", **environment}).invoke(main, ["doctor", *arguments])


def findings(result: Result) -> dict[str, dict[str, Any]]:
    """The last one of each subject."""
    return {finding["what"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_a_machine_without_problems_ends_with_0(tmp_path: Path) -> None:
    result = run("--data", str(tmp_path / "data"))
    assert result.exit_code == 0, result.output
    assert "the first start makes it" in result.stdout
    assert not (tmp_path / "data").exists()


def test_a_problem_ends_with_7_and_has_a_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        # Asked elsewhere, or the doctor would wait for STOMP from a test that says nothing.
        result = run("--data", str(tmp_path), "--url", "stomp://127.0.0.1:1", SLUICEWAY_LISTENERS=address)
    assert result.exit_code == 7
    assert "✗ listener:" in result.stdout
    assert f"{address} is taken: process {os.getpid()}" in result.stdout
    assert "stop that program, or choose another port" in result.stdout
    assert "there are problems" in result.stderr


def test_json_is_for_programs_and_has_the_same_exit_code(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text("[brokre]\n")
    result = run("--json", "--config", str(tmp_path / "broker.toml"))
    assert result.exit_code == 7
    assert json.loads(result.stdout)["verdict"] == "problem"
    finding = findings(result)["configuration"]
    assert finding["verdict"] == "problem"
    assert "brokre: unknown key; did you mean broker?" in finding["said"]
    assert finding["remedy"]


def test_a_broker_that_was_named_must_be_there(tmp_path: Path) -> None:
    result = run("--json", "--data", str(tmp_path), "--url", "stomp://127.0.0.1:1")
    assert result.exit_code == 7
    assert "no broker answers at stomp://127.0.0.1:1" in findings(result)["broker"]["said"]


def test_after_a_plain_start_there_is_nothing_to_say_against_the_data_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with BrokerProcess(tmp_path) as broker:
            host, port = broker.address
            running = run("--json", "--data", str(tmp_path / "sluiceway-data"), "--url", f"stomp://{host}:{port}")
            broker.signal(signal.SIGTERM)
            assert broker.wait() == 0
    finally:
        os.umask(before)
    stopped = run("--json", "--data", str(tmp_path / "sluiceway-data"))
    for result in (running, stopped):
        assert {found["verdict"] for found in json.loads(result.stdout)["findings"] if "folder" in found["what"]} == {
            "ok"
        }


def test_an_address_that_is_none_is_wrong_usage() -> None:
    assert run("--url", "http://x").exit_code == 2


def test_a_broker_that_runs_is_asked_and_its_port_is_told_though_it_has_another_folder(tmp_path: Path) -> None:
    with EmbeddedBroker(Config(listeners=[Listener(address="127.0.0.1:0")])) as broker:
        host, _colon, port = broker.address.rpartition(":")
        result = run("--json", "--data", str(tmp_path), "--url", f"stomp://{host}:{port}",
                     SLUICEWAY_LISTENERS=f"{host}:{port}")  # fmt: skip
    assert result.exit_code == 0, result.output
    found = findings(result)
    assert "answers: login in" in found["broker"]["said"]
    assert found["listener"]["said"].endswith("is in use by a broker that runs with another folder")


def test_a_refused_login_is_told_and_is_no_problem_of_the_machine(tmp_path: Path) -> None:
    def refuse(command: str, _headers: object, _body: bytes) -> bytes | None:
        return frame("ERROR", {"message": "access refused"}) if command in ("CONNECT", "STOMP") else None

    with ScriptedBroker(refuse) as broker:
        result = run("--json", "--data", str(tmp_path), "--url", broker.url, "--login", "x", SLUICEWAY_PASSCODE="y")
    assert findings(result)["broker"]["verdict"] == "warning"
    assert "access refused" in findings(result)["broker"]["said"]
    assert result.exit_code == 0


@pytest.mark.parametrize("passcode", ["hunter2-and-more"])
def test_passcodes_are_never_shown(tmp_path: Path, passcode: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'listeners = ["0.0.0.0:0"]\n[security.users]\nann = "{passcode}"\n')
    result = run("--config", str(file), "--data", str(tmp_path / "data"))
    assert "passcodes in plain text: ann" in result.stdout
    assert "chmod 600" in result.stdout
    assert passcode not in result.output
