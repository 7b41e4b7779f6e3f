"""Builds the virtual environment of the checkout; called by scripts/setup with any Python 3.11 or later.

A lock beside the folder lets several scripts start at once: one builds, the others wait and then find the stamp. The
kernel drops the lock when its holder dies, so there is no stale lock to clear away. The stamp is written last: a build
that was cut short is simply done again, into the same folder.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

BUILD = "build"
"""Name, in place of extras, of the environment that makes sdist and wheel: without Sluiceway."""


def stamp_of(root: Path, extras: str) -> str:
    """Return the contents that an environment is made from; must be, byte for byte, what scripts/setup compares."""
    return f"{root} [{extras}]\n" + (root / "pyproject.toml").read_text() + (root / "constraints.txt").read_text()


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def run(what: str, command: list[str], log: Path) -> None:
    """Runs one step, its output to `log`, its progress on one line; ends the script with the log's tail if it fails."""
    started = time.monotonic()
    live = sys.stderr.isatty()
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        if not live:
            say(f"{what} ...")
        while True:
            try:
                code = process.wait(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                if live:
                    print(
                        f"\rsetup: {what} ... {time.monotonic() - started:.0f} s", end="", file=sys.stderr, flush=True
                    )
    if live:
        print(f"\rsetup: {what}: {time.monotonic() - started:.0f} s     ", file=sys.stderr, flush=True)
    if code == 0:
        return
    text = log.read_text(errors="replace")
    print("\n".join(text.splitlines()[-25:]), file=sys.stderr)
    say(f"{what} failed (exit code {code}); the whole output is in {log}")
    if "ensurepip" in text:
        say(
            "this Python has no ensurepip. Debian, Ubuntu: apt install python3-venv; or name another: "
            "SLUICEWAY_PYTHON=..."
        )
    elif "No matching distribution" in text or "Connection" in text:
        say(
            "pip could not fetch a package: check the network and pip's own configuration (`pip config list`), then "
            "run again"
        )
    raise SystemExit(1)


def build(root: Path, venv: Path, extras: str) -> None:
    log = venv.with_name(venv.name + ".log")
    log.unlink(missing_ok=True)
    python = str(venv / "bin" / "python")
    # One that was moved or whose interpreter went away is made anew; one that still runs is only brought up to date.
    usable = Path(python).exists() and subprocess.run(
        [python, "-c", "import pip, sys; sys.exit(sys.prefix != sys.argv[1])", str(venv)], capture_output=True
    )
    if not usable or usable.returncode != 0:
        version = ".".join(str(part) for part in sys.version_info[:3])
        run(f"making {venv.name} with Python {version}", [sys.executable, "-m", "venv", "--clear", str(venv)], log)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-c", str(root / "constraints.txt")]
    # The build backends first and from the constraints file too: then pip needs no second, unpinned environment to
    # build in. PySpark comes as source only, and takes setuptools.
    if extras == BUILD:
        run("installing hatchling and twine", [*pip, "hatchling", "twine"], log)
        finish(root, venv, extras, log)
        return
    run("installing the build backends", [*pip, "hatchling", "setuptools", "wheel"], log)
    run(
        "installing Sluiceway, its tools and Spark (the first time half a gigabyte comes in)"
        if extras == "dev"
        else f"installing Sluiceway with {extras}",
        [*pip, "--no-build-isolation", "-e", f"{root}[{extras}]"],
        log,
    )
    finish(root, venv, extras, log)


def finish(root: Path, venv: Path, extras: str, log: Path) -> None:
    """Stamp an environment that is complete, and drop the log of its making."""
    (venv / "sluiceway.stamp").write_text(stamp_of(root, extras))
    log.unlink()


def main(root: Path, venv: Path, extras: str) -> None:
    with venv.with_name(venv.name + ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another script is building {venv.name}, waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = venv / "sluiceway.stamp"
        if not (stamp.exists() and stamp.read_text() == stamp_of(root, extras) and (venv / "bin" / "python").exists()):
            build(root, venv, extras)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
