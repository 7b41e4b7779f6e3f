"""The programs of docs/languages.md, each run as printed, with the runtime and client library of its language."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import pytest

from sluiceway import EmbeddedBroker
from tests.architecture.sources import ROOT

PAGE: Final = ROOT / "docs" / "languages.md"
JARS: Final = [f"/usr/share/java/{name}.jar" for name in ("activemq-stomp", "activemq-client", "slf4j-api")]
NODE_MODULES: Final = os.environ.get("SLUICEWAY_NODE_MODULES", "")
"""A folder `node_modules` with @stomp/stompjs and ws, since nothing is fetched by a test."""

SECONDS_MAX: Final = 45.0


@attrs.frozen
class Language:
    """How the program of one language is built and run; `needs` is a command that succeeds where it can be."""

    file: str
    needs: Sequence[str]
    run: Sequence[str]
    build: Sequence[str] = ()
    port: str = "stomp"


LANGUAGES: Final = [
    Language(
        file="Orders.java",
        needs=["sh", "-c", f"javac -version && ls {' '.join(JARS)}"],
        build=["javac", "-cp", ":".join(JARS), "Orders.java"],
        run=["java", "-cp", ":".join([".", *JARS]), "Orders"],
    ),
    Language(
        file="orders.mjs",
        needs=["sh", "-c", f"node --version && ls '{NODE_MODULES}/@stomp/stompjs' '{NODE_MODULES}/ws'"],
        build=["ln", "-s", NODE_MODULES, "node_modules"],
        run=["node", "orders.mjs"],
        port="ws",
    ),
    Language("orders.rb", ["ruby", "-e", "require 'stomp'"], ["ruby", "orders.rb"]),
    Language("orders.php", ["php", "-r", "exit(class_exists('Stomp') ? 0 : 1);"], ["php", "orders.php"]),
    Language("orders.pl", ["perl", "-MNet::Stomp", "-e", "1"], ["perl", "orders.pl"]),
    Language("orders.go", ["go", "version"], ["./orders"], build=["go", "build", "-o", "orders", "orders.go"]),
    Language(
        file="Orders.cs",
        needs=["sh", "-c", "mcs --version && mono --version"],
        build=["mcs", "-out:orders.exe", "Orders.cs"],
        run=["mono", "orders.exe"],
    ),
]


def programs() -> dict[str, str]:
    """The programs of the page by the names of their files, which stand in their first comments."""
    found = {}
    for text in re.findall(r"^```[a-z]+\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if name := re.match(r"(?:<\?php\n)?(?://|#) (\w+\.\w+)\n", text):
            found[name[1]] = text
    return found


def expected() -> str:
    """What the page says that each of them prints."""
    found = re.search(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_every_program_of_the_page_is_run() -> None:
    assert set(programs()) == {language.file for language in LANGUAGES}


@pytest.mark.interop
@pytest.mark.timeout(120)  # two of them are compiled first
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.file)
def test_a_program_prints_what_the_page_says(language: Language, tmp_path: Path) -> None:
    """It leaves nothing in the queue: every ACK has arrived."""
    environment = {**os.environ, "GOCACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}

    def do(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    if shutil.which(language.needs[0]) is None or do(language.needs).returncode:
        pytest.skip(f"no runtime or client library for {language.file} here: {' '.join(language.needs)} failed")
    (tmp_path / language.file).write_text(programs()[language.file], encoding="utf-8")
    if language.build:
        built = do(language.build)
        assert built.returncode == 0, built.stderr
    with EmbeddedBroker(listeners=["127.0.0.1:0", "ws://127.0.0.1:0/stomp"]) as broker:
        stomp, ws = (re.findall(r":(\d+)", url)[0] for url in broker.broker.urls)
        done = do([*language.run, {"stomp": stomp, "ws": ws}[language.port]])
        assert (done.returncode, done.stdout) == (0, expected()), done.stderr
        assert broker.messages("/queue/orders") == []
