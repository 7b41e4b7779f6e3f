"""`.ci/run` with stand-ins for everything that takes time: which versions of Python it takes, and when it is red."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

#: Stand-ins for scripts of the checkout. Variables say which of them fail, by the folder of the virtual environment.
SETUP = """
[ "$1" != --which ] || { echo "$MAIN"; exit; }
mkdir -p .venv/bin && cp "$MAIN" .venv/bin/python
[ "${SLUICEWAY_VENV:-.venv}" != "$FAILING_SETUP" ]
"""
TEST = """
echo "ran in ${SLUICEWAY_VENV:-.venv}: $*"
cat >/dev/null
case "${SLUICEWAY_VENV:-.venv} $*" in "$FAILING_TEST"*) exit 1 ;; esac
"""


def put(command: Path, script: str) -> Path:
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return command


def python(command: Path, version: str, venv: bool = True) -> Path:
    """A stand-in that answers what it is and whether it makes environments."""
    told = f"{version} {'with' if venv else 'without'}-venv"
    return put(command, f'case "$2" in "import venv"*) exit {0 if venv else 1} ;; esac; echo {told}')


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder for the front of the path, where no other Python is found."""
    folder = tmp_path / "bin"
    for minor in ("3.11", "3.12", "3.13", "3.14"):
        put(folder / f"python{minor}", "echo 'version not installed' >&2; exit 127")
    put(folder / "chromium", "exit 0")
    put(folder / "npm", "exit 1")
    put(folder / "apt-get", 'echo "apt-get $*"; exit 1')
    return folder


def environment(commands: Path, **variables: str) -> dict[str, str]:
    empty = str(commands.parent / "nowhere")
    return {"PATH": f"{commands}:{os.defpath}", "HOME": empty, "PYENV_ROOT": empty, **variables}


def interpreters(commands: Path, main: Path, system: Path) -> tuple[list[str], str]:
    done = subprocess.run(
        [str(ROOT / ".ci" / "interpreters"), str(main), str(system)],
        env=environment(commands),
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def test_the_systems_python_and_one_of_each_minor_version_are_taken(commands: Path, tmp_path: Path) -> None:
    """The main one is not run again; another patch release of it is, if it is the system's."""
    main = python(commands / "python3.11", "3.11.7")
    system = python(tmp_path / "usr" / "python3", "3.11.2")
    python(commands / "python3.12", "3.12.1")
    python(commands / "python3.14", "3.14.0")
    found, _ = interpreters(commands, main, system)
    # Where 3.13 is kept outside of the path and of the home folder, it is found, too.
    versions = [line.split()[0] for line in found if not line.startswith("3.13")]
    assert versions == ["3.11.2", "3.12.1", "3.14.0"]
    assert found[0] == f"3.11.2 {system}"


def test_a_system_with_the_main_version_is_not_tested_twice(commands: Path, tmp_path: Path) -> None:
    main = python(commands / "python3.12", "3.12.1")
    system = python(tmp_path / "usr" / "python3", "3.12.1")
    found, said = interpreters(commands, main, system)
    assert not any(line.startswith("3.12") for line in found)
    assert str(system) not in said


def test_a_system_without_venv_is_named_and_its_minor_version_is_looked_for_elsewhere(
    commands: Path, tmp_path: Path
) -> None:
    main = python(commands / "python3.11", "3.11.7")
    system = python(tmp_path / "usr" / "python3", "3.13.5", venv=False)
    python(commands / "python3.13", "3.13.0")
    found, said = interpreters(commands, main, system)
    assert "3.13.0 python3.13" in found
    assert f"not tested on {system} (3.13.5)" in said


@pytest.fixture
def checkout(tmp_path: Path, commands: Path) -> Path:
    """A checkout whose scripts are stand-ins, with 3.11.7 as its Python, 3.11.2 as the system's, and 3.12.1."""
    root = tmp_path / "checkout"
    (root / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "interpreters", root / ".ci")
    system = python(tmp_path / "usr" / "python3", "3.11.2")
    put(root / ".ci" / "run", (ROOT / ".ci" / "run").read_text().replace("/usr/bin/python3", str(system)))
    put(root / "scripts" / "setup", SETUP)
    put(root / "scripts" / "test", TEST)
    put(root / "scripts" / "check", "exit 0")
    put(root / "scripts" / "build", 'echo "tried with $*"')
    put(root / "scripts" / "image", "exit 0")
    python(commands / "python3.11", "3.11.7")
    python(commands / "python3.12", "3.12.1")
    return root


def run(checkout: Path, commands: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    main = str(commands / "python3.11")
    fails = {"FAILING_SETUP": "none", "FAILING_TEST": "none", **variables}
    return subprocess.run(
        [str(checkout / ".ci" / "run")],
        env=environment(commands, MAIN=main, **fails),
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_every_version_runs_and_is_named(checkout: Path, commands: Path) -> None:
    done = run(checkout, commands)
    assert done.returncode == 0, done.stderr
    for folder in (".venv", ".venv-3.11.2", ".venv-3.12.1"):
        assert f"ran in {folder}:" in done.stdout
    assert f"tried with --try .venv/bin/python {checkout.parent / 'usr' / 'python3'} python3.12\n" in done.stdout
    assert "### Python: 3.11.7" in done.stdout
    assert " 3.11.2 3.12.1" in done.stdout.partition("### Python:")[2]


@pytest.mark.parametrize(
    ("what", "which"),
    [
        ("FAILING_TEST", ".venv "),
        ("FAILING_TEST", ".venv -n 0 -m spark_ci"),
        ("FAILING_TEST", ".venv-3.11.2"),
        ("FAILING_TEST", ".venv-3.12.1"),
        ("FAILING_SETUP", ".venv"),
        ("FAILING_SETUP", ".venv-3.11.2"),
    ],
)
def test_a_failure_on_any_version_makes_it_red_and_the_others_run(
    checkout: Path, commands: Path, what: str, which: str
) -> None:
    done = run(checkout, commands, **{what: which})
    assert done.returncode == 1
    assert "failed:" in done.stderr
    if what == "FAILING_SETUP" and which != ".venv":
        assert f"ran in {which}" not in done.stdout
    assert "ran in .venv-3.12.1:" in done.stdout


def test_a_system_that_can_not_get_its_venv_makes_it_red(checkout: Path, commands: Path, tmp_path: Path) -> None:
    """Where packages may be installed; elsewhere it is only said."""
    python(tmp_path / "usr" / "python3", "3.11.2", venv=False)
    put(commands / "id", "echo 0")
    done = run(checkout, commands)
    assert done.returncode == 1
    assert "[other versions of Python]" in done.stderr
    assert "ran in .venv-3.12.1:" in done.stdout
    put(commands / "id", "echo 1000")
    done = run(checkout, commands)
    assert done.returncode == 0
    assert "not tested on" in done.stderr
