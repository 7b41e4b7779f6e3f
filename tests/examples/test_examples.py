"""Every example runs as it stands, and the demonstration proves what it claims."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem not in ("__init__", "demo"))
SECONDS_MAX = 100.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEWAY_")}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def complaints_of_doctor(folder: Path) -> list[str]:
    """What `sluiceway doctor` says of a data folder that is a worry."""
    done = run("sluiceway", "doctor", "--json", "--data", str(folder))
    return [
        finding["said"]
        for finding in json.loads(done.stdout)["findings"]
        if finding["what"] == "data folder" and finding["verdict"] != "ok"
    ]


@pytest.mark.interop
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str) -> None:
    done = run(f"examples.{name}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert not done.stderr


@pytest.mark.interop
@pytest.mark.timeout(120)
def test_the_demonstration_passes_its_own_verdict(tmp_path: Path) -> None:
    """Without a terminal: plain lines, the quick way. The act with Spark is a test of its own. No data folder that was
    made is open to others.
    """
    data_dir = tmp_path / "out" / "demo"
    done = run("examples.demo", "--quick", "--no-spark", "--data", str(data_dir))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verdict: passed, 27 of 27 checks met" in done.stdout
    assert "\x1b" not in done.stdout
    assert complaints_of_doctor(data_dir / "store") == []
    for folder in (data_dir, data_dir / "store"):
        assert not folder.stat().st_mode & 0o077


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_demonstration_of_a_cluster_passes_its_own_verdict(tmp_path: Path) -> None:
    """A hub is killed under load."""
    done = run("examples.demo", "--cluster", "--quick", "--data", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verdict: passed, 8 of 8 checks met" in done.stdout
    assert "kill -9" in done.stdout


@pytest.mark.interop
@pytest.mark.timeout(120)
def test_an_interrupted_demonstration_stops_its_broker(tmp_path: Path) -> None:
    data_dir = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--data", str(data_dir)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "Act 1" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _out, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert "the broker was stopped" in said
    assert '"broker stops"' in (data_dir / "broker.log").read_text()


@pytest.mark.interop
@pytest.mark.timeout(120)
def test_the_demonstration_fails_without_a_broker(tmp_path: Path) -> None:
    """A broken configuration stands for all that can keep it from starting."""
    file = tmp_path / "not-a-folder"
    file.write_text("")
    for show in ("--no-spark", "--cluster"):
        done = run("examples.demo", "--quick", show, "--data", str(file / "demo"))
        assert done.returncode != 0
        assert "Verdict: passed" not in done.stdout
