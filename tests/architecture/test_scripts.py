"""The set-up script, as far as it goes without a network: what it says when there is nothing to work with, and when it
has nothing to do.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

SCRIPTS = ("setup", "serve", "demo", "test", "check", "build", "image", "release", "docs")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what scripts/setup reads, and nothing else."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/setup", "scripts/environment.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder for the path with the few commands that the script needs, but no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "dirname", "cat", "cmp", "pwd"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def put(folder: Path, name: str, script: str) -> None:
    command = folder / name
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


def run(checkout: Path, commands: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(commands), **variables}
    return subprocess.run(
        [str(checkout / "scripts" / "setup"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_can_be_run(name: str) -> None:
    assert os.access(ROOT / "scripts" / name, os.X_OK)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert os.access(ROOT / ".ci" / "interpreters", os.X_OK)


def test_without_a_python_it_names_the_remedy(checkout: Path, commands: Path) -> None:
    done = run(checkout, commands)
    assert done.returncode == 1
    assert "no Python 3.11 or later" in done.stderr
    assert "SLUICEWAY_PYTHON=" in done.stderr


def test_a_command_that_only_pretends_to_be_python_is_passed_over(checkout: Path, commands: Path) -> None:
    """A version manager's stand-in for a version that is not installed fails when it is run."""
    put(commands, "python3.11", "echo 'version 3.11 is not installed' >&2; exit 127")
    put(commands, "python3", "exit 0")
    # Both questions (version, venv) were answered with yes, so this one is started with the build script.
    put(commands, "python3.12", 'case "$1" in -c) exit 0;; esac; echo "built by $0 with $1" >&2; exit 0')
    done = run(checkout, commands)
    assert done.returncode == 0
    assert "python3.12 with" in done.stderr
    assert "environment.py" in done.stderr


def test_a_python_without_venv_is_named_with_the_remedy(checkout: Path, commands: Path) -> None:
    put(commands, "python3.11", 'case "$2" in *ensurepip*) exit 1;; esac; exit 0')
    done = run(checkout, commands)
    assert done.returncode == 1
    assert "python3.11 runs, but" in done.stderr
    assert "apt install python3-venv" in done.stderr


def test_a_named_python_that_does_not_work_is_an_error(checkout: Path, commands: Path) -> None:
    """Even if another would do: who names one means it."""
    put(commands, "python3.11", "exit 0")
    done = run(checkout, commands, SLUICEWAY_PYTHON="no-such-python")
    assert done.returncode == 1
    assert "SLUICEWAY_PYTHON=no-such-python" in done.stderr


def make_stamped_environment(checkout: Path) -> Path:
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    stamp = f"{checkout} [dev]\n" + "".join(
        (checkout / name).read_text() for name in ("pyproject.toml", "constraints.txt")
    )
    (venv / "sluiceway.stamp").write_text(stamp)
    return venv


def test_an_environment_that_is_up_to_date_is_left_alone(checkout: Path, commands: Path) -> None:
    """No Python on the path, yet it succeeds: it did not even look for one."""
    make_stamped_environment(checkout)
    done = run(checkout, commands)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_says_which_interpreter_it_would_use_and_makes_nothing(checkout: Path, commands: Path) -> None:
    put(commands, "python3.12", 'case "$1" in -c) exit 0;; esac; exit 1')
    done = run(checkout, commands, "--which")
    assert (done.returncode, done.stdout.strip()) == (0, str(commands / "python3.12"))
    venv = make_stamped_environment(checkout)
    done = run(checkout, commands, "--which")
    assert (done.returncode, done.stdout.strip()) == (0, str(venv / "bin" / "python"))


def test_a_change_of_the_constraints_makes_it_build_again(checkout: Path, commands: Path) -> None:
    make_stamped_environment(checkout)
    with (checkout / "constraints.txt").open("a") as constraints:
        constraints.write("another==1.0\n")
    assert run(checkout, commands).returncode == 1


def test_the_build_script_stamps_what_the_shell_script_compares(checkout: Path, commands: Path) -> None:
    """Two languages, one stamp: byte for byte."""
    venv = make_stamped_environment(checkout)
    written = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, environment as e, pathlib; sys.stdout.write(e.stamp_of(pathlib.Path(sys.argv[1]), 'dev'))",
            str(checkout),
        ],
        cwd=checkout / "scripts",
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    (venv / "sluiceway.stamp").write_text(written)
    assert run(checkout, commands).returncode == 0


#: Stands for hatchling and twine: makes the files, and says what was asked for.
BUILDER = """
echo "$(basename "$(dirname "$(dirname "$0")")"): $*"
case "$*" in
*sdist*) mkdir -p dist sluiceway-1 && : >sluiceway-1/PKG-INFO && tar -czf dist/sluiceway-1.tar.gz sluiceway-1 ;;
esac
"""


def build(checkout: Path, *arguments: str) -> list[str]:
    """Run scripts/build where scripts/setup makes such environments and says so. Return what was said."""
    shutil.copy(ROOT / "scripts" / "build", checkout / "scripts" / "build")
    (checkout / "builder").write_text(f"#!/bin/sh\n{BUILDER}")
    put(
        checkout / "scripts",
        "setup",
        'venv=${SLUICEWAY_VENV:-.venv}; at="$PWD/$venv/bin"\n'
        'if [ "${1:-}" = --which ]; then [ -x "$at/python" ] && echo "$at/python"; exit; fi\n'
        'echo "set-up of $venv with ${SLUICEWAY_EXTRAS:-dev}"\n'
        'mkdir -p "$at" && cp builder "$at/python" && chmod +x "$at/python"',
    )
    done = subprocess.run(
        [str(checkout / "scripts" / "build"), *arguments],
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_a_build_sets_up_what_it_builds_with_and_nothing_else(checkout: Path) -> None:
    said = build(checkout)
    assert said[0] == "set-up of .venv-build with build"
    assert [line.partition(" --directory")[0] for line in said[1:]] == [
        ".venv-build: -m hatchling build --target sdist",
        ".venv-build: -m hatchling build --target wheel",
        ".venv-build: -m twine check --strict dist/sluiceway-1.tar.gz",
    ]


def test_a_build_takes_the_environment_that_is_there(checkout: Path) -> None:
    """And makes it, where the wheel is to be tried with the tools of the tests."""
    assert build(checkout, "--try", "python3.99")[0] == "set-up of .venv with dev"
    assert all(line.startswith((".venv: ", "set-up of .venv with dev")) for line in build(checkout))


def test_the_environment_of_builds_has_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    environment = importlib.import_module("environment")
    commands: list[list[str]] = []

    def run(_what: str, command: list[str], log: Path) -> None:
        commands.append(command)
        log.touch()
        (tmp_path / ".venv-build").mkdir(exist_ok=True)

    monkeypatch.setattr(environment, "run", run)
    environment.build(ROOT, tmp_path / ".venv-build", "build")
    made, installed = commands
    assert made[1:3] == ["-m", "venv"]
    assert installed[-2:] == ["hatchling", "twine"] and "-e" not in installed
    assert (tmp_path / ".venv-build" / "sluiceway.stamp").read_text() == environment.stamp_of(ROOT, "build")


def test_the_suite_says_what_it_leaves_out(checkout: Path, commands: Path) -> None:
    """Also if it fails, whose code it has; with arguments it runs what they say and nothing is left out."""
    shutil.copy(ROOT / "scripts" / "test", checkout / "scripts" / "test")
    put(checkout / "scripts", "setup", "exit 0")
    (checkout / ".venv" / "bin").mkdir(parents=True)
    put(checkout / ".venv" / "bin", "python", 'echo "$*"; exit 3')

    def test(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(checkout / "scripts" / "test"), *arguments],
            env={"PATH": str(commands)},
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    whole, some = test(), test("-m", "spark")
    assert (whole.returncode, whole.stdout) == (3, "-m pytest -n 2 --dist worksteal -m not spark\n")
    assert "left out" in whole.stderr
    assert "scripts/test -m spark" in whole.stderr
    assert (some.returncode, some.stdout, some.stderr) == (3, "-m pytest -m spark\n", "")
