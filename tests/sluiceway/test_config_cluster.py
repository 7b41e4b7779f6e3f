"""The table `[cluster]`: what goes together, and what is refused, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluiceway.config import Config, ConfigError, load
from sluiceway.config.cluster import reachable
from sluiceway.config.structure import InvalidData, structure

GOOD: dict[str, Any] = {
    "hub": "hub-1",
    "coordination": "zk-1:2181,zk-2:2181/sluiceway/orders",
    "secret_file": "secret",
}
STORE: dict[str, Any] = {"engine": "postgresql", "url": "postgresql://db/sluiceway"}


def test_a_hub_is_configured_with_three_keys_and_a_database() -> None:
    config = structure({"cluster": GOOD, "store": STORE}, Config).cluster
    assert (config.is_on, config.has_secret, config.session_seconds) == (True, True, 10)
    assert not Config().cluster.is_on


def test_settings_may_lie_ready_without_a_hub() -> None:
    """One file for all hubs, and the name of each in SLUICEWAY_CLUSTER__HUB."""
    assert not structure({"cluster": {**GOOD, "hub": ""}, "store": STORE}, Config).cluster.is_on


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hub": "hub 1"}, "cluster.hub: must be 1 to 63 letters, digits, dots, hyphens and underscores"),
        ({"coordination": ""}, "cluster: hub is given without coordination: name the ZooKeeper servers and a path"),
        ({"coordination": "zk-1:2181"}, "names no cluster on ZooKeeper: servers with commas between, then a path"),
        ({"coordination": "zk-1/orders"}, "names no cluster on ZooKeeper"),
        ({"secret_file": "none"}, "cluster: nothing would prove that a link comes from a hub of this cluster"),
        ({"secret_env": "SECRET"}, "cluster: secret_file and secret_env are both given: take one"),
        ({"secret_file": "none", "secret_env": "the secret itself"}, "must be the name of an environment variable"),
        ({"coordination_user": "hubs"}, "cluster: coordination_user is given without a password"),
        ({"coordination_password_env": "WORD"}, "given without coordination_user: name the user"),
        ({"session_seconds": 0.5}, "cluster.session_seconds: must be from 1 to 600, got 0.5"),
        ({"weight": -1}, "cluster.weight: must be from 0 to 1,000,000, got -1"),
        ({"listen": "61612"}, "is not an address: write HOST:PORT"),
        ({"advertise": "hub-1"}, "is not an address: write HOST:PORT"),
        ({"advertise_clients": "hub-1:61613"}, "cluster.advertise_clients: must be a URL with a port"),
        ({"advertise_clients": "stomp://user@hub-1:61613"}, "without a user"),
        ({"tls": {"certificate": "c", "client_certificates": "optional", "client_ca": "ca"}}, "has no meaning between"),
        ({"tls": {"client_certificates": "required"}}, "client_certificates is given without a certificate"),
        ({"hubs": "hub-1"}, "unknown key; did you mean cluster.hub?"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidData) as raised:
        structure({"cluster": {**GOOD, **changes}, "store": STORE}, Config)
    assert words in str(raised.value)
    assert "the secret itself" not in str(raised.value)


@pytest.mark.parametrize("engine", ["auto", "leveldb", "memory", "none"])
def test_a_store_that_other_hubs_can_not_reach_is_refused(engine: str, tmp_path: Path) -> None:
    """By the file, with the remedy."""
    file = tmp_path / "sluiceway.toml"
    file.write_text(
        f'[cluster]\nhub = "hub-1"\ncoordination = "zk-1:2181/c"\nsecret_file = "s"\n[store]\nengine = "{engine}"\n'
    )
    with pytest.raises(
        ConfigError, match=r"cluster\.coordination is set, and store\.engine is .*: hubs on several machines"
    ):
        load(file, environment={}, flags=[])


@pytest.mark.parametrize(
    ("listen", "port", "address"),
    [
        ("10.0.0.7:0", 4711, "10.0.0.7:4711"),
        ("[fd00::7]:61612", 61612, "[fd00::7]:61612"),
        ("0.0.0.0:61612", 61612, "machine-7:61612"),
        ("[::]:61612", 61612, "machine-7:61612"),
    ],
)
def test_an_address_for_everywhere_is_advertised_with_the_name_of_the_machine(
    listen: str, port: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "machine-7")
    assert reachable(listen, port) == address
