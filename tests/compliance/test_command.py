"""`sluiceway compliance`: options, reports, exit codes."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluiceway.cli import main
from sluiceway.cli.compliance import DIALECT_NAMES
from sluiceway.compliance.dialects import DIALECTS
from tests.compliance.conftest import Addresses
from tests.compliance.test_checks_can_fail import proxy, sub


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compliance", "--quiet", "0.05", *arguments])


def test_a_kept_duty_ends_with_0_and_all_three_reports(addresses: Addresses, tmp_path: Path) -> None:
    data, page = tmp_path / "report.json", tmp_path / "report.html"
    found = run(
        "--only", "1.2/send/d", "--without", "topic", "--json", str(data), "--page", str(page), "--all", addresses.plain
    )
    assert found.exit_code == 0, found.output
    assert "✓ 1.2/send/delivered (MUST)" in found.output
    assert found.output.endswith("Every duty that could be checked is kept.\n")
    report = json.loads(data.read_text())
    assert report["schema"] == 1
    assert report["broker"]["server"].startswith("sluiceway/")
    assert {check["result"] for check in report["checks"]} == {"passed"}
    assert "1.2/send/destination-required" in page.read_text()
    assert "http" not in page.read_text().replace("http-equiv", ""), "the page needs nothing from elsewhere"


def test_a_broken_must_ends_with_1_and_its_frames(addresses: Addresses, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with proxy(addresses, down=sub(rb"\nx-second:[^\n]*", b"\nx-<script>:1", b"MESSAGE")) as address:
        found = run("--only", "1.2/send/user-headers", "--page", str(page), address)
    assert found.exit_code == 1
    assert "✗ 1.2/send/user-headers   MUST, STOMP 1.2, SEND" in found.output
    assert "> x-second:two words" in found.output
    assert "Not kept: 1 MUST, 0 SHOULD." in found.output
    assert "x-&lt;script&gt;" in page.read_text()


def test_a_broken_should_counts_only_if_strict(addresses: Addresses) -> None:
    with proxy(addresses, down=sub(rb"\nmessage:[^\n]*", b"", b"ERROR")) as address:
        assert run("--only", "1.2/error/message", address).exit_code == 0
        assert run("--only", "1.2/error/message", "--strict", address).exit_code == 1


def test_json_on_standard_output_stands_alone(addresses: Addresses) -> None:
    found = run("--only", "1.2/send/delivered", "--without", "nothing", "--json", "-", addresses.plain)
    assert [check["name"] for check in json.loads(found.stdout)["checks"]] == ["1.2/send/delivered"]


def test_what_is_left_out_is_shown_as_skipped(addresses: Addresses) -> None:
    found = run("--only", "1.2/send/d", "--without", "destination", "--all", addresses.plain)
    assert "· 1.2/send/destination-required (MUST): left out by --without" in found.output


def test_the_list_asks_no_broker() -> None:
    found = run("--list", "--only", "STOMP 1.1, Heart")
    assert found.exit_code == 0
    assert "1.1/heart-beat/sends   MUST, STOMP 1.1, Heart-beating" in found.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no broker is given"),
        (("--only", "no such check", "127.0.0.1:1"), "no check is left"),
        (("http://127.0.0.1:1",), "is no address"),
        (("127.0.0.1:99999",), "is no address"),
        (("--ca", "/nowhere.pem", "127.0.0.1:1"), "need --tls"),
        (("--tls", "--ca", "/nowhere.pem", "127.0.0.1:1"), "/nowhere.pem"),
        (("--queue", "/queue/one", "127.0.0.1:1"), "has {name} in it"),
        (("--send-header", "none", "127.0.0.1:1"), "write NAME:VALUE"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(arguments: tuple[str, ...], words: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert words in found.output


def test_no_broker_ends_with_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    found = run("--only", "1.2/send", f"127.0.0.1:{port}")
    assert found.exit_code == 2
    assert f"no session with stomp://127.0.0.1:{port}: 1.2: no connection to the broker" in found.output


def test_the_command_knows_all_dialects() -> None:
    assert set(DIALECT_NAMES) == set(DIALECTS)
