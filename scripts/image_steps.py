"""Carries out the instructions of deploy/Dockerfile in a scratch folder, and uses the broker that comes of it.

    python -m scripts.image_steps

For machines without an engine. The folder stands for the root of the image: paths of the image in instructions become
paths below the folder, files come from the checkout as far as .dockerignore lets them in, RUN runs with what ENV says,
and `python` is the Python that runs this. Accounts are not made: `groupadd` and `useradd` are stand-ins that note what
they were asked for, and `install` leaves owners out. What only an engine can show is not shown: the base image, layers,
users, a read-only root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.architecture.sources import ROOT

DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
STEP_SECONDS_MAX: Final = 240.0
ANSWER_SECONDS_MAX: Final = 30.0
PATHS: Final = ("/opt/sluiceway", "/build", "/var/lib/sluiceway", "/etc/sluiceway")
"""Folders of the image that instructions name."""
USER: Final = "10001"
READY: Final = re.compile(r"sluiceway (ready|admin): (\S+)")


class StepError(Exception):
    """A step of the Dockerfile failed, or the broker that came of the steps."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile: word and rest, continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            word, _space, rest = line.strip().partition(" ")
            yield word, " ".join(rest.split())


def let_in(context: Path) -> set[str]:
    """Return the entries of the checkout that .dockerignore lets into the context."""
    return {line[1:] for line in (context / ".dockerignore").read_text().splitlines() if line.startswith("!")}


class Image:
    """The scratch folder, and what the instructions so far have set."""

    def __init__(self, root: Path, context: Path) -> None:
        self.root = root
        self.context = context
        self.allowed = let_in(context)
        self.variables: dict[str, str] = {}
        self.folder = root
        self.said: dict[str, str] = {}
        """The last CMD, ENTRYPOINT, USER, HEALTHCHECK and so on."""
        self.accounts = root / "accounts"
        commands = root / "stand-ins"
        commands.mkdir(parents=True)
        self._put(commands / "python", f'exec {sys.executable} "$@"')
        for name in ("groupadd", "useradd"):
            self._put(commands / name, f'echo "{name} $*" >>{self.accounts}')
        self._put(
            commands / "install",
            'for word; do case $skip$word in --owner|--group) skip=yes;; yes*) skip=;; *) set -- "$@" "$word";; esac; '
            f'shift; done; exec {shutil.which("install")} "$@"',
        )
        self.commands = commands

    @staticmethod
    def _put(path: Path, script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def here(self, text: str) -> str:
        """Return the text with paths of the image as paths below the folder."""
        for path in PATHS:
            text = re.sub(rf"(?<![\w/.]){re.escape(path)}\b", str(self.root) + path, text)
        return text

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the image, and what the package installer of this machine needs."""
        hidden = ("PYTHON", "SLUICEWAY_", "VIRTUAL_ENV")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        path = f"{self.commands}{os.pathsep}{os.environ['PATH']}"
        own = self.variables.get("PATH", "").replace("$PATH", path) or path
        return {**ours, **self.variables, "PATH": own, "TMPDIR": "/tmp"}

    def carry_out(self, word: str, rest: str) -> None:
        """Carry out one instruction. Raises StepError."""
        if word == "ENV":
            for pair in rest.split():
                name, _equals, value = pair.partition("=")
                self.variables[name] = self.here(value)
        elif word == "WORKDIR":
            self.folder = self.root / rest.lstrip("/")
            self.folder.mkdir(parents=True, exist_ok=True)
        elif word == "FROM":
            self.variables.clear()
            self.folder = self.root
        elif word == "COPY":
            self._copy(rest)
        elif word == "RUN":
            done = subprocess.run(
                ["/bin/sh", "-c", self.here(rest)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=STEP_SECONDS_MAX,
                check=False,
            )
            if done.returncode != 0:
                raise StepError(f"RUN {rest}\n{done.stdout}{done.stderr}")
        else:
            self.said[word] = rest

    def _copy(self, rest: str) -> None:
        if rest.startswith("--from="):
            return  # both stages have one root here
        *sources, target = rest.split()
        for source in sources:
            if not any(source == entry or source.startswith(f"{entry}/") for entry in self.allowed):
                raise StepError(f"COPY {source}: .dockerignore keeps it out of the context")
            to = Path(self.here(target)) if target.startswith("/") else self.folder / target
            if target.endswith("/"):
                to = to / Path(source).name
            to.parent.mkdir(parents=True, exist_ok=True)
            if (self.context / source).is_dir():
                shutil.copytree(
                    self.context / source, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
                )
            else:
                shutil.copy(self.context / source, to)


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the first lines that a process prints. Raises StepError if they do not come in time."""
    lines: list[str] = []
    out = process.stdout
    assert out is not None
    reader = threading.Thread(target=lambda: lines.extend(out.readline() for _ in range(count)), daemon=True)
    reader.start()
    reader.join(ANSWER_SECONDS_MAX)
    if reader.is_alive() or not all(lines):
        raise StepError(f"the broker is not ready; it printed {lines}")
    return lines


def use(image: Image) -> None:
    """Start the command of the image on free ports, ask its health, send and receive, and stop it. Raises StepError."""
    command = [image.here(word) for word in (*json.loads(image.said["ENTRYPOINT"]), *json.loads(image.said["CMD"]))]
    config = Path(command[command.index("--config") + 1])
    config.write_text(image.here(config.read_text()))
    environment = {
        **image.environment,
        "SLUICEWAY_LISTENERS": "127.0.0.1:0",
        "SLUICEWAY_ADMIN__ADDRESS": "127.0.0.1:0",
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            words,
            env=environment,
            cwd=image.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise StepError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    with (image.root / "broker.log").open("wb") as log:
        broker = subprocess.Popen(
            command, env=environment, cwd=image.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            text=True,
        )  # fmt: skip
        try:
            urls = {match[1]: match[2] for line in read_lines(broker, 2) if (match := READY.match(line))}
            environment["SLUICEWAY_URL"] = urls["ready"]
            health = json.loads(image.said["HEALTHCHECK"].partition("CMD ")[2])
            run(*(word.replace("http://127.0.0.1:8161", urls["admin"].rstrip("/")) for word in health))
            run("sluiceway", "send", "/queue/hello", "--persistent", "Hello from the image")
            said = run("sluiceway", "receive", "/queue/hello", "--count", "1", "--timeout", "10")
            if said != "Hello from the image\n":
                raise StepError(f"received {said!r}")
            broker.send_signal(getattr(signal, image.said["STOPSIGNAL"]))
            code = broker.wait(ANSWER_SECONDS_MAX)
            if code != 0:
                raise StepError(f"the broker ended with exit code {code}")
        finally:
            if broker.poll() is None:
                broker.kill()
                broker.wait()


def main() -> None:
    """Carry out the Dockerfile, use what comes of it, and say so."""
    with tempfile.TemporaryDirectory(prefix="sluiceway-image-") as name:
        image = Image(Path(name), ROOT)
        for word, rest in instructions(DOCKERFILE.read_text()):
            image.carry_out(word, rest)
        accounts = image.accounts.read_text()
        if f"--uid {USER}" not in accounts or image.said["USER"] != f"{USER}:{USER}":
            raise StepError(f"the user of the image is not {USER}: {accounts}")
        shutil.rmtree(image.root / "build")  # not in the last stage
        use(image)
    print("scripts/image: the steps of the Dockerfile are carried out; the broker started, was used, and stopped")


if __name__ == "__main__":
    try:
        main()
    except StepError as error:
        sys.exit(f"scripts/image: {error}")
