"""Configuration of ActiveMQ as ours. ActiveMQ 5.17.2 has run with `activemq.xml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sluiceway.cli import main
from sluiceway.config import load
from sluiceway.migration.activemq import read
from sluiceway.migration.findings import SourceError
from sluiceway.protocols.stomp.authorization import Action
from sluiceway.security.permissions import Permissions
from sluiceway.security.rules import rules_of
from sluiceway.security.secrets import hashed

RECORDED = Path(__file__).with_name("activemq.xml")
KEPT = str(hashed("x", log_n=4, r=1, p=1))


@pytest.fixture
def migrated(tmp_path: Path) -> tuple[Path, str]:
    output = tmp_path / "sluiceway.toml"
    result = CliRunner().invoke(main, ["migrate", "activemq", str(RECORDED.parent), "--output", str(output)])
    assert result.exit_code == 0, result.output
    return output, result.output


def test_policies_and_limits_are_settings(migrated: tuple[Path, str]) -> None:
    made = tomllib.loads(migrated[0].read_text())
    assert made["broker"] == {"memory_bytes": 256 << 20}
    assert made["store"] == {"bytes_max": 1 << 30}
    assert made["listeners"] == [{"address": "127.0.0.1:61613"}]
    orders = {
        "memory_bytes": 20 << 20,
        "prefetch_count": 200,
        "dead_letter": "/queue/OrdersDead",
        "dead_letter_expired": False,
    }
    entries = {entry.pop("match"): entry for entry in made["destinations"]}
    assert next(iter(entries)) == "/queue/>", "the widest first: later ones override it"
    assert entries == {
        "/queue/>": {
            "dead_letter": "/queue/ActiveMQ.DLQ",
            "dead_letter_expired": True,
            "redeliveries_max": 4,
            "redelivery_delay_ms": 5000,
            "redelivery_backoff": 1.0,
        },
        "/queue/orders": orders,
        "/queue/orders.>": orders,
        "/queue/bills": {
            "auto_delete_seconds": 90,
            "dead_letter": "/queue/DLQ.bills",
            "dead_letter_expired": True,
            "slow_consumer": "disconnect",
            "slow_after_seconds": 45,
        },
        "/topic/>": {"dead_letter": "/queue/ActiveMQ.DLQ"},
    }


def test_what_has_no_equivalent_is_said_on_the_terminal_and_in_the_file(migrated: tuple[Path, str]) -> None:
    output, said = migrated
    for lost in (
        "pendingMessageLimitStrategy",
        "producerFlowControl = false",
        "lazyDispatch, maxPageSize",
        "'openwire' (tcp)",
        "closeAsync",
        "statisticsBrokerPlugin",
        "ActiveMQ.Advisory.>",
        "sendFailIfNoSpace",
        "tempUsage",
        "orders.eu, news",
        "permission `admin`",
    ):
        assert lost in said
        assert lost in output.read_text()
    assert "manager" not in output.read_text(), "passwords are not carried over"


def test_users_may_what_they_might(migrated: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As ActiveMQ 5.17.2 answered: entries add up, and a last `>` matches no level as well."""
    monkeypatch.chdir(migrated[0].parent)
    Path("users").write_text("".join(f"{user}:{KEPT}\n" for user in ("system", "boss", "user")))
    rules = rules_of(load(migrated[0], environment={}))
    table = Permissions(rules.config.permissions, default_allows=False)

    def may(user: str, action: str, destination: str | None) -> bool:
        return table.may(rules.users.identities[user], Action(action), destination)

    assert may("user", "connect", None)
    assert may("boss", "receive", "/queue/USERS.x")
    for destination in ("/queue/USERS", "/queue/USERS.x", "/queue/USERS.a.b"):
        assert all(may("user", action, destination) for action in ("receive", "send", "create", "browse"))
    assert not may("user", "receive", "/queue/orders.eu")
    assert not may("user", "send", "/topic/news")
    assert not may("boss", "admin", None)


def test_users_of_files_of_properties_and_of_no_permissions() -> None:
    files = {
        "login.config": b"activemq { org.apache.activemq.jaas.PropertiesLoginModule required\n"
        b'org.apache.activemq.jaas.properties.user="users.properties"\n'
        b'org.apache.activemq.jaas.properties.group="groups.properties"; };',
        "users.properties": b"# people\nadmin=admin\nweb=hunter2\n",
        "groups.properties": b"admins=admin\nall=admin, web\n",
    }
    document = b'<broker><plugins><jaasAuthenticationPlugin configuration="activemq"/></plugins></broker>'
    made = tomllib.loads(read(document, files.get).toml())["security"]
    assert made["groups"] == {"admins": ["admin"], "all": ["admin", "web"]}
    assert made["permissions"] == [
        {"users": ["*"], "actions": ["connect"]},
        {"users": ["*"], "actions": ["send", "receive", "browse", "create"]},
    ]
    assert "hunter2" not in read(document, files.get).toml()
    assert any("no file of users" in line for line in read(document).report)


@pytest.mark.parametrize("wrong", [b"", b"<a", b"<beans/>", b"\xff\xfe"])
def test_what_is_no_configuration_is_refused(wrong: bytes) -> None:
    with pytest.raises(SourceError):
        read(wrong)


def test_names_can_not_write_settings() -> None:
    evil = "x&quot;&#10;[broker]&#10;name = &quot;evil&quot;"
    document = (
        f'<broker><destinationPolicy><policyMap><policyEntries><policyEntry queue="{evil}" memoryLimit="1mb" '
        f'{"odd"}="{evil}"/></policyEntries></policyMap></destinationPolicy>'
        f'<plugins><simpleAuthenticationPlugin><users><authenticationUser username="{evil}" groups="{evil}"/></users>'
        "</simpleAuthenticationPlugin></plugins></broker>"
    )
    made: dict[str, Any] = tomllib.loads(read(document.encode()).toml())
    assert "broker" not in made
