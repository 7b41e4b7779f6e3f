"""Without the LevelDB binding everything works that keeps no messages on a disk; what does says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sluiceway.cli.exits import Exit

BLOCKED = """
import sys
sys.modules["plyvel"] = sys.modules["plyvel_next"] = None  # an import of either raises ImportError
"""

IMPORTING = """
import importlib, pkgutil
import sluiceway.store
from sluiceway.store.memory import MemoryEngine

for module in pkgutil.walk_packages(sluiceway.store.__path__, "sluiceway.store."):
    if module.name.rpartition(".")[2] not in ("binding", "leveldb", "repair"):
        importlib.import_module(module.name)

import sluiceway.broker, sluiceway.cli.store
from sluiceway.store.engine import put
engine = MemoryEngine()
engine.write([put(b"key", b"value")], sync=True)
print(engine.get(b"key").decode())
"""

SERVING = """
from sluiceway.cli import main
main()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_store_is_imported_and_keeps_messages_in_memory() -> None:
    done = run(IMPORTING)
    assert (done.returncode, done.stdout) == (0, "value\n"), done.stderr


def test_a_data_folder_that_needs_it_names_what_to_install(tmp_path: Path) -> None:
    done = run(SERVING, "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert done.returncode == Exit.STORE
    assert "pip install plyvel" in done.stderr and "Traceback" not in done.stderr
