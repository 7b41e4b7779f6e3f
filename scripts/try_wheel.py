"""Installs a wheel as its users do, and plays the first sessions of README with it; called by scripts/build.

    python -m scripts.try_wheel WHEEL PYTHON...

Each interpreter gets an empty environment in a temporary folder. Dependencies come from the package index, in the
versions of constraints.txt. Nothing of the checkout is on the path there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.architecture.sources import ROOT
from tests.examples.pages import Block, blocks
from tests.examples.session import Session

README: Final = ROOT / "README.md"
LAST_HEADING: Final = "## Logs"
"""Heading of the README where the sessions that need only the broker end."""
INSTALL_SECONDS_MAX: Final = 240.0
RUN_SECONDS_MAX: Final = 60.0
AT_A_TIME: Final = 2

REFUSALS: Final = (
    (("serve", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0"), "pip install 'sluiceway[console]'"),
    (("top",), "pip install 'sluiceway[top]'"),
)
"""Commands that need an extra, and what an installation without the extra says."""


def first_sessions() -> list[Block]:
    """Return the blocks of README that come before `LAST_HEADING`."""
    lines = README.read_text(encoding="utf-8").splitlines()
    end = lines.index(LAST_HEADING)
    return [block for block in blocks(README) if block.line_number < end]


def clean_environment() -> dict[str, str]:
    """Return the environment of a user without a checkout."""
    hidden = ("PYTHON", "PYTEST_", "SLUICEWAY_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def run(command: Sequence[str | Path], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, outside of the checkout."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def checked(command: Sequence[str | Path], folder: Path, seconds: float) -> str:
    """Run a command that must succeed, and return what the command printed."""
    done = run(command, folder, seconds)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


def size_bytes(folder: Path) -> int:
    """Return the size of all files below a folder, without compiled modules."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def try_wheel(wheel: Path, interpreter: str) -> str:
    """Install the wheel with one interpreter and play the sessions. Return a line of figures. Raises AssertionError."""
    with tempfile.TemporaryDirectory(prefix="sluiceway-wheel-") as name:
        folder = Path(name)
        environment = folder / "environment"
        checked([interpreter, "-m", "venv", "--without-pip", environment], folder, INSTALL_SECONDS_MAX)
        python = environment / "bin" / "python"
        before = time.monotonic()
        checked(
            [
                *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"),
                *("--constraint", ROOT / "constraints.txt", wheel),
            ],
            folder,
            INSTALL_SECONDS_MAX,
        )
        seconds = time.monotonic() - before
        version = checked([python, "-c", "import platform; print(platform.python_version())"], folder, RUN_SECONDS_MAX)
        installed = Path(
            checked(
                [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder, RUN_SECONDS_MAX
            ).strip()
        )
        packages_count = len(list(installed.glob("*.dist-info")))
        figures = f"{packages_count} packages, {size_bytes(installed) / 1e6:.0f} MB, installed in {seconds:.0f} s"
        for command, remedy in REFUSALS:
            done = run([environment / "bin" / "sluiceway", *command], folder, RUN_SECONDS_MAX)
            assert done.returncode == 2, f"{command}: exit code {done.returncode}: {done.stderr}"
            assert remedy in done.stderr, f"{command}: {done.stderr}"
        played = folder / "played"
        played.mkdir()
        with Session(played, commands=environment / "bin") as session:
            for block in first_sessions():
                session.play(block)
        return f"Python {version.strip()}: {figures}; README's first sessions run as printed"


def main(wheel: str, interpreters: Iterable[str]) -> int:
    """Try the wheel with each interpreter. Return 0 if all went well."""
    failed = False
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = [os.path.abspath(each) if "/" in each else each for each in interpreters]
        tried = [(each, pool.submit(try_wheel, Path(wheel).resolve(), each)) for each in found]
        for interpreter, outcome in tried:
            try:
                print(outcome.result(), flush=True)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                failed = True
                print(f"{interpreter}: {re.sub(r'^', '    ', str(error), flags=re.MULTILINE).strip()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
