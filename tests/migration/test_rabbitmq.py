"""Definitions of RabbitMQ as our configuration. `rabbitmq.json` was exported by RabbitMQ 3.10.8."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sluiceway.cli import main
from sluiceway.config import load
from sluiceway.migration.findings import SourceError
from sluiceway.migration.rabbitmq import patterns_of, read
from sluiceway.security.permissions import Permissions
from sluiceway.security.rules import rules_of
from sluiceway.security.secrets import hashed

RECORDED = Path(__file__).with_name("rabbitmq.json")
KEPT = str(hashed("x", log_n=4, r=1, p=1))


@pytest.fixture
def document() -> Any:
    return json.loads(RECORDED.read_text())


def migrated(tmp_path: Path) -> tuple[Path, str]:
    output = tmp_path / "sluiceway.toml"
    result = CliRunner().invoke(main, ["migrate", "rabbitmq", str(RECORDED), "--output", str(output)])
    assert result.exit_code == 0, result.output
    return output, result.output


def test_queues_and_policies_are_settings(tmp_path: Path) -> None:
    output, _said = migrated(tmp_path)
    made = {entry.pop("match"): entry for entry in tomllib.loads(output.read_text())["destinations"]}
    assert made == {
        "/queue/orders.>": {"dead_letter": "/queue/bills", "dead_letter_expired": True, "expires_max_ms": 5000},
        "/queue/orders.eu": {"count_max": 7, "bytes_max": 1_000_000, "full": "reject"},
        "/queue/bills": {
            "dead_letter": "/queue/dead",
            "dead_letter_expired": True,
            "redeliveries_max": 3,
            "count_max": 1000,
            "expires_max_ms": 60_000,
            "full": "dead_letter",
        },
        "/log/events": {"log_retention_seconds": 604_800, "log_retention_bytes": 100_000_000},
    }


def test_what_has_no_equivalent_is_said_on_the_terminal_and_in_the_file(tmp_path: Path) -> None:
    output, said = migrated(tmp_path)
    for lost in (
        "virtual hosts shop",
        "ha-mode",
        "single-active-consumer",
        "exchange 'shop'",
        "user 'none'",
        "passcodes of 4",
    ):
        assert lost in said
        assert lost in output.read_text()


def test_users_may_what_they_might(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, _said = migrated(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("users").write_text("".join(f"{user}:{KEPT}\n" for user in ("guest", "ops", "web", "odd")))
    rules = rules_of(load(output, environment={}))
    table = Permissions(rules.config.permissions, default_allows=False)

    def may(user: str, action: Any, destination: str | None) -> bool:
        from sluiceway.protocols.stomp.authorization import Action

        return table.may(rules.users.identities[user], Action(action), destination)

    assert may("ops", "admin", None)
    assert may("ops", "send", "/queue/any")
    assert may("web", "create", "/queue/orders.x")
    assert may("web", "send", "/queue/orders.x.y")
    assert may("web", "receive", "/queue/bills")
    assert not may("web", "receive", "/queue/orders.x")
    assert not may("web", "send", "/queue/bills")
    assert not may("web", "admin", None)
    assert not any(may("odd", action, "/queue/orders") for action in ("send", "receive", "create"))
    assert may("odd", "connect", None)


@pytest.mark.parametrize(
    ("expression", "patterns"),
    [
        ("", []),
        ("^$", []),
        (".*", ["/>"]),
        ("^.*$", ["/>"]),
        ("^orders$", ["/queue/orders"]),
        (r"^orders\.eu$", ["/queue/orders.eu"]),
        (r"^orders\..*", ["/queue/orders.>"]),
        (r"^(a|b\..*)$", ["/queue/a", "/queue/b.>"]),
        (r"^(a|amq\.default|amq\.topic)$", ["/queue/a", "/topic/>"]),
        ("orders", None),
        ("^orders", None),
        ("^orders-.*", None),
        ("^a.b$", None),
        ("^a|b$", None),
        ("^(a|b)", None),
        ("^(?!x)a$", None),
        ("^a*$", None),
        (r"^\w$", None),
        ("(", None),
    ],
)
def test_expressions_become_patterns_that_say_the_same_or_none(expression: str, patterns: list[str] | None) -> None:
    assert patterns_of(expression, ("/queue/",)) == patterns


@pytest.mark.parametrize("wrong", [None, [], {}, {"queues": []}, {"queues": 3, "rabbit_version": "3"}])
def test_what_is_no_export_is_refused(wrong: Any) -> None:
    with pytest.raises(SourceError):
        read(wrong)


def test_another_virtual_host_is_read_by_name(document: Any) -> None:
    assert not read(document, "shop").destinations
    with pytest.raises(SourceError, match="there are: /, shop"):
        read(document, "absent")


def test_permissions_by_topic_are_not_made_wider(document: Any) -> None:
    document["topic_permissions"] = [{"user": "ops", "vhost": "/", "exchange": "amq.topic", "write": "^a$", "read": ""}]
    found = read(document)
    (entry,) = (each for each in found.permissions if each["users"] == ["ops"])
    assert entry["destinations"] == ["/queue/>", "/log/>"]
    assert any("topic permission of 'ops'" in line for line in found.report)


def test_what_our_configuration_can_not_have_is_left_out_and_said(document: Any, tmp_path: Path) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a,b"}
    document["queues"] = [
        {"name": "a", "vhost": "/", "arguments": {"x-max-length": True, "x-overflow": ["drop-head"], **dead}},
        {"name": "b", "vhost": "/", "arguments": {"x-queue-type": "stream", "x-max-age": "0s"}},
    ]
    document["policies"][0]["apply-to"] = ["queues"]
    found = read(document)
    (tmp_path / "sluiceway.toml").write_text(found.toml().replace('users_file = "users"', ""))
    load(tmp_path / "sluiceway.toml")
    said = [line for line in found.report if line.startswith(("/queue/a: ", "/log/b: "))]
    assert [line.partition(" = ")[0] for line in said] == [
        "/queue/a: count_max", "/queue/a: dead_letter", "/log/b: log_retention_seconds"
    ]  # fmt: skip


def test_names_can_not_write_settings(document: Any) -> None:
    evil = 'x"\n[broker]\nname = "evil"'
    document["queues"][0] = {"name": evil, "vhost": "/", "arguments": {"x-max-length": 1, evil: evil}}
    document["exchanges"] = [{"name": evil, "vhost": "/", "type": evil}]
    document["users"][0]["name"] = evil
    document["permissions"][0]["user"] = evil
    assert "broker" not in tomllib.loads(read(document).toml())


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    output, _said = migrated(tmp_path)
    result = CliRunner().invoke(main, ["migrate", "rabbitmq", str(RECORDED), "--output", str(output)])
    assert result.exit_code == 2
    assert "can't be written" in result.output
    assert CliRunner().invoke(main, ["migrate", "rabbitmq", str(tmp_path / "absent")]).exit_code == 2
