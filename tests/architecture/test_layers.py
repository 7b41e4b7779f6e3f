"""Imports only point down, and the pure core stays pure."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import PACKAGES, ROOT, folder_of, imports_in, imports_of, modules

RANKS: Final = {"flow": 0, "dispatcher": 0, "queues": 1, "store": 2, "protocols": 2, "sluiceway": 3, "pyspark_stomp": 4}
"""Low to high; a package imports itself and what ranks lower. Equal ranks don't know each other."""

PROJECT: Final = frozenset({*PACKAGES, "tests", "perf", "examples", "scripts"})

IMPURE: Final = frozenset(
    {
        "trio", "plyvel", "asyncio", "socket", "selectors", "ssl", "select", "subprocess", "threading", "signal",
        "multiprocessing", "time", "datetime", "random", "secrets", "uuid", "os", "pathlib", "mmap", "logging",
        "structlog",
    }
)  # fmt: skip
"""What the pure core must not touch: event loops, sockets, threads, clocks, chance, files, logs."""

DISPATCHER_SHELL: Final = frozenset({"dispatcher/shell.py", "dispatcher/inbox.py"})
"""The trio loop and the inbox for other threads; the rest of dispatcher/ is pure."""

STOMP_MACHINE: Final = frozenset(
    f"protocols/stomp/{name}.py"
    for name in (
        "__init__", "acks", "dialects", "encoder", "errors", "escaping", "faults", "frames", "head", "headcache",
        "largebody", "limits", "machine", "octets", "parser", "receive_buffer", "rawhead", "strides", "transitions",
        "passing",
        "unheard",
    )
)  # fmt: skip
"""The sans-I/O machine, usable without the broker (by a client, by pyspark_stomp); the others bind it to queues."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pure_modules() -> list[Path]:
    paths = [*modules("flow", "queues", "dispatcher"), *modules("protocols/stomp")]
    return [path for path in paths if relative(path) not in DISPATCHER_SHELL]


def outside_of(allowed: set[str], imports: set[str]) -> set[str]:
    """Those of the imports that lie in a folder of the project that is not allowed."""
    return {name for name in imports if folder_of(name) in PROJECT - allowed and name != "sluiceway"}


def impure_among(imports: set[str]) -> set[str]:
    return {name for name in imports if name.split(".")[0] in IMPURE}


@pytest.mark.parametrize(
    "line",
    [
        "from ..store.queue_records import QueueRecords",
        "from .. import store",
        "import sluiceway.broker",
        "def later():\n    from sluiceway.protocols import stomp",
        "from perf import turns",
    ],
)
def test_an_import_that_points_up_is_found(line: str) -> None:
    imports = imports_in(line, "sluiceway.queues.made_up", is_package=False)
    assert outside_of({"flow", "dispatcher", "queues"}, imports)
    assert not outside_of(
        {"flow", "queues"}, imports_in("from ..flow import words", "sluiceway.queues.x", is_package=False)
    )


@pytest.mark.parametrize("line", ["import time", "import os.path", "from random import choice", "import trio"])
def test_an_import_of_io_clock_or_chance_is_found(line: str) -> None:
    assert impure_among(imports_in(line, "sluiceway.flow.made_up", is_package=False))
    assert not impure_among({"math", "timeit", "sluiceway.flow.time"})


def test_imports_only_point_down() -> None:
    """One test for all modules: a test for each of them would take longer to be called than to look."""
    found = []
    for path in modules(*RANKS):
        package = path.relative_to(ROOT).parts[0]
        allowed = {package, *(other for other, rank in RANKS.items() if rank < RANKS[package])}
        if relative(path) == "sluiceway/cli/spark.py":
            allowed.add("pyspark_stomp")  # a command about it, which imports it when it is asked for
        if wrong := outside_of(allowed, imports_of(path)):
            found.append(f"{relative(path)} imports {', '.join(sorted(wrong))}")
    assert not found, f"a package may import what ranks lower: {'; '.join(found)}"


def test_the_core_touches_no_io_clock_or_chance() -> None:
    pure = pure_modules()
    assert len(pure) > 100
    found = [
        f"{relative(path)} imports {', '.join(sorted(wrong))}"
        for path in pure
        if (wrong := impure_among(imports_of(path)))
    ]
    assert not found, f"pass it in, or move it to a shell: {'; '.join(found)}"


def stays_in_the_machine(name: str) -> bool:
    """Whether an imported name is the machine, a part of it, or something that a part defines."""
    path = name.removeprefix("sluiceway.").replace(".", "/")
    parts = (path, path.rpartition("/")[0])
    return name in ("sluiceway.protocols", "sluiceway.protocols.stomp") or any(
        f"{part}.py" in STOMP_MACHINE or f"{part}/__init__.py" in STOMP_MACHINE for part in parts
    )


SPARK_USES: Final = (
    "sluiceway.client",
    "sluiceway.queues.logs.batches",
    "sluiceway.queues.logs.codecs",
    "sluiceway.queues.shard_hash",
    "pyspark_stomp",
)
"""Beside the machine: the log clients, which are light themselves (tests/client), the framing of batches, and the hash
of names.
"""


def test_the_spark_source_stays_light() -> None:
    """Spark ships it to its workers: the machine, the clients and the framing of batches, no trio, no plyvel."""
    foreign = PROJECT | {"trio", "plyvel"}
    for path in modules("pyspark_stomp"):
        wrong = {
            name
            for name in imports_of(path)
            if folder_of(name) in foreign and not name.startswith(SPARK_USES) and not stays_in_the_machine(name)
        }
        assert not wrong, f"{relative(path)} imports {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("module", sorted(STOMP_MACHINE))
def test_the_stomp_machine_knows_nothing_of_the_broker(module: str) -> None:
    """Neither queues and flow, nor those parts of its own folder that bind it to them."""
    wrong = {
        name for name in imports_of(ROOT / module) if folder_of(name) in PROJECT and not stays_in_the_machine(name)
    }
    assert not wrong, f"{module} imports {', '.join(sorted(wrong))}"
