"""Without an extra, whatever needs the extra says which one to install, and the rest works."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest

from sluiceway import EmbeddedBroker, extras
from sluiceway.extras import MissingExtraError, needs
from tests.architecture.sources import ROOT
from tests.sluiceway.broker_process import environment

DEADLINE_SECONDS = 30


def run_without(extra: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process where the packages of an extra can't be imported."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in extras.PACKAGES[extra])
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {hidden}\n{code}"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("console", ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]),
        ("top", ["top"]),
    ],
)
def test_a_command_names_its_extra_and_ends_with_2(extra: str, arguments: list[str]) -> None:
    done = run_without(extra, f"from sluiceway.cli import main\nmain({arguments!r})")
    assert done.returncode == 2, done.stderr
    assert f"pip install 'sluiceway[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_on_zookeeper_names_its_extra() -> None:
    done = run_without("cluster", "import sluiceway.cluster.coordination.zookeeper")
    assert "MissingExtraError: a cluster on ZooKeeper needs kazoo" in done.stderr
    assert "pip install 'sluiceway[cluster]'" in done.stderr


def test_metrics_of_an_embedded_broker_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "prometheus_client.process_collector", None)
    with EmbeddedBroker() as broker, pytest.raises(MissingExtraError, match=r"pip install 'sluiceway\[console\]'"):
        broker.metrics()


def test_a_broker_needs_no_extra() -> None:
    names = [name for extra in extras.PACKAGES.values() for name in extra]
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in (*names, "stomp"))
    code = f"import sys; {hidden}\nfrom sluiceway import EmbeddedBroker\nwith EmbeddedBroker() as b: print(b.url)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.stdout.startswith("stomp://127.0.0.1:"), done.stderr


def test_a_module_of_ours_that_is_not_there_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught, needs("console", "a test"):
        importlib.import_module("sluiceway.no_such_module")
    assert not isinstance(caught.value, MissingExtraError)


@pytest.mark.parametrize("extra", extras.PACKAGES)
def test_the_table_agrees_with_the_declared_dependencies(extra: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    packages = [re.split(r"[\[<>=]", requirement)[0] for requirement in declared]
    assert sorted(packages) == sorted(extras.PACKAGES[extra].values())
    assert extras.missing_packages(extra) == []
    assert all(importlib.util.find_spec(module) for module in extras.PACKAGES[extra])
