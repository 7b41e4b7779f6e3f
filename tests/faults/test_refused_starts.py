"""A broker that cannot start says why on standard error, and ends with a code that scripts can test."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from perf.peers.daemon import free_port
from sluiceway import Config, EmbeddedBroker
from sluiceway.broker import ListenError
from sluiceway.config import Listener
from tests.sluiceway.broker_process import BrokerProcess, command, environment


def serve(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """The exit code of `sluiceway serve` and what it said."""
    ended = subprocess.run(
        command("serve", *arguments),
        cwd=folder,
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.stdout == "", "it is not ready"
    return ended.returncode, ended.stderr


def test_a_port_in_use_names_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = serve(tmp_path, "--listen", f"127.0.0.1:{port}")
    assert code == 3
    assert f"127.0.0.1:{port}" in said
    assert "in use" in said.lower()


def test_an_admin_port_in_use_names_the_flag_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        code, said = serve(tmp_path, "--listen", "127.0.0.1:0", "--admin", address)
    assert code == 3
    assert address in said
    assert "--admin 127.0.0.1:0 takes any free one" in said
    assert "--listen" not in said


def test_the_second_of_two_listeners_in_use_frees_the_first(tmp_path: Path) -> None:
    """All or nothing: no half-started broker stays behind."""
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = other.getsockname()[1]
        code, _said = serve(tmp_path, "--listen", f"127.0.0.1:{free}", "--listen", f"127.0.0.1:{used}")
        assert code == 3
        with socket.create_server(("127.0.0.1", free)):
            pass


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    code, said = serve(tmp_path, "--listen", "192.0.2.1:0")
    assert code == 3
    assert "192.0.2.1:0" in said


def test_a_host_that_is_not_known(tmp_path: Path) -> None:
    code, said = serve(tmp_path, "--listen", "no-such-host.invalid:0")
    assert code == 3
    assert "no-such-host.invalid" in said


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[listeners\n", id="not TOML"),
        pytest.param("[brokre]\n", id="unknown key"),
        pytest.param('[broker]\nshutdown_seconds = "soon"\n', id="wrong value"),
        pytest.param('[[listeners]]\naddress = "nowhere"\n', id="bad address"),
    ],
)
def test_a_configuration_that_is_wrong_names_the_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(content)
    code, said = serve(tmp_path, "--config", str(file))
    assert code == 2
    assert "broker.toml" in said
    assert "Traceback" not in said


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    code, said = serve(tmp_path, "--config", "missing.toml")
    assert code == 2
    assert "missing.toml" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_configuration_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("")
    file.chmod(0)
    code, said = serve(tmp_path, "--config", str(file))
    assert code == 2
    assert "broker.toml" in said
    assert "Traceback" not in said


def test_a_configuration_that_is_a_folder(tmp_path: Path) -> None:
    code, said = serve(tmp_path, "--config", str(tmp_path))
    assert code == 2
    assert "Traceback" not in said


def test_an_environment_that_is_wrong_names_the_variable(tmp_path: Path) -> None:
    code, said = serve(tmp_path, SLUICEWAY_BROKER__SHUTDOWN_SECONDS="soon")
    assert code == 2
    assert "SLUICEWAY_BROKER__SHUTDOWN_SECONDS" in said


def test_a_port_in_use_raises_in_an_embedded_broker() -> None:
    """Where the caller can catch it, with the remedy; and nothing keeps running."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = EmbeddedBroker(Config(listeners=(Listener(address=f"127.0.0.1:{port}"),)))
        with pytest.raises(ListenError, match="the port is in use: stop the other program"):
            broker.start()


def test_two_brokers_on_one_port_do_not_share_it(tmp_path: Path) -> None:
    """SO_REUSEADDR must not become SO_REUSEPORT: clients would land on either."""
    with BrokerProcess(tmp_path) as broker:
        code, _said = serve(tmp_path, "--listen", "{}:{}".format(*broker.address))
        assert code == 3
