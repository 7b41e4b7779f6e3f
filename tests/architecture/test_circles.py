"""No two modules of the product import each other, also not by way of others.

What runs has no circles, wherever in a module an import stands. Imports for type checkers alone (TYPE_CHECKING) still
have some: they are listed, and the list may only become shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final

import pytest

from tests.architecture.sources import PACKAGES, imports_in, modules, name_of

KNOWN: Final = [
    frozenset(
        {
            "sluiceway.admin.action_routes",
            "sluiceway.admin.app",
            "sluiceway.admin.read_routes",
            "sluiceway.admin.openapi",
            "sluiceway.admin.operations",
            "sluiceway.admin.routes",
            "sluiceway.admin.server",
            "sluiceway.admin.services",
            "sluiceway.admin.starting",
            "sluiceway.admin.state",
            "sluiceway.broker",
            "sluiceway.metrics.gather",
            "sluiceway.reloading",
            "sluiceway.report",
        }
    ),
    frozenset(
        {
            "sluiceway.flow.account",
            "sluiceway.flow.graph",
            "sluiceway.flow.limiters",
            "sluiceway.flow.manager",
            "sluiceway.flow.resource",
            "sluiceway.flow.shares",
            "sluiceway.flow.source",
            "sluiceway.flow.survey",
            "sluiceway.flow.upkeep",
        }
    ),
    frozenset(
        {
            "sluiceway.queues.dead_letters",
            "sluiceway.queues.durables",
            "sluiceway.queues.environment",
            "sluiceway.queues.expiry",
            "sluiceway.queues.full_actions",
            "sluiceway.queues.held_turns",
            "sluiceway.queues.intake",
            "sluiceway.queues.paging",
            "sluiceway.queues.queue",
            "sluiceway.queues.storage",
            "sluiceway.queues.subscription",
        }
    ),
    frozenset(
        {
            "sluiceway.queues.destination",
            "sluiceway.queues.registry",
            "sluiceway.queues.welcomes",
        }
    ),
    frozenset(
        {
            "sluiceway.queues.logs.epochs",
            "sluiceway.queues.logs.log",
            "sluiceway.queues.logs.offers",
            "sluiceway.queues.logs.log_readers",
            "sluiceway.queues.logs.reading",
            "sluiceway.queues.logs.refused",
            "sluiceway.queues.logs.runs",
        }
    ),
    frozenset(
        {
            "sluiceway.store.bonds",
            "sluiceway.store.dirty",
            "sluiceway.store.going_on",
            "sluiceway.store.loading",
            "sluiceway.store.places",
            "sluiceway.store.queue_records",
            "sluiceway.store.storequeue",
            "sluiceway.store.together",
        }
    ),
]
"""The circles that imports for type checkers make: modules that reach each other."""


def import_graph(sources: Mapping[str, str], *, for_types: bool) -> dict[str, Set[str]]:
    """Which of these modules each of them imports; sources by the names of their modules."""
    packages = {name.rpartition(".")[0] for name in sources}
    graph: dict[str, Set[str]] = {}
    for name, source in sources.items():
        imports = imports_in(source, name, is_package=name in packages, for_types=for_types)
        # `from .queues import topic` is an import of the module, not of what `queues` offers.
        below = {module.rpartition(".")[0] for module in imports if module in sources}
        graph[name] = {module for module in imports if module in sources and module not in below}
    return graph


def circles(graph: Mapping[str, Set[str]]) -> list[frozenset[str]]:
    """The largest sets of modules that all reach each other."""
    graph = _without_ends(graph)
    reached = {name: _reached_from(graph, name) for name in graph}
    return sorted(
        {
            frozenset(other for other in reached[name] if name in reached[other])
            for name in graph
            if name in reached[name]
        },
        key=sorted,
    )


def _without_ends(graph: Mapping[str, Set[str]]) -> dict[str, Set[str]]:
    """Only what can be in a circle: modules that import others of these."""
    left = dict(graph)
    while ends := {name for name, imports in left.items() if not imports & left.keys()}:
        left = {name: imports for name, imports in left.items() if name not in ends}
    return {name: imports & left.keys() for name, imports in left.items()}


def _reached_from(graph: Mapping[str, Set[str]], name: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[name])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(graph[module])
    return found


def said(found: Iterable[frozenset[str]]) -> str:
    return "; ".join(", ".join(sorted(circle)) for circle in found)


@pytest.fixture(scope="module")
def product() -> dict[str, str]:
    return {name_of(path): path.read_text(encoding="utf-8") for path in modules(*PACKAGES)}


def test_no_module_imports_itself_by_way_of_others(product: dict[str, str]) -> None:
    found = circles(import_graph(product, for_types=False))
    assert not found, f"{said(found)}: move what they share to a module below them"


def test_circles_of_types_are_known_and_still_there(product: dict[str, str]) -> None:
    found = circles(import_graph(product, for_types=True))
    new = [circle for circle in found if not any(circle <= one for one in KNOWN)]
    assert not new, f"new, or grown: {said(new)}; the list of known circles only becomes shorter"
    gone = set().union(*KNOWN) - set().union(*found)
    assert not gone, f"in no circle any more: {', '.join(sorted(gone))}; remove it from the list"


ONE_WAY: Final = {"house": "", "house.a": "from . import b", "house.b": "import attrs"}


@pytest.mark.parametrize(
    ("back", "runs"),
    [
        ("from .a import A", True),
        ("from . import a", True),
        ("import house.a", True),
        ("def f():\n    from house.a import A", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from .a import A", True),
        ("if TYPE_CHECKING:\n    from .a import A", False),
        ("from . import c", True),
    ],
)
def test_a_circle_is_found(back: str, runs: bool) -> None:
    sources = {**ONE_WAY, "house.c": "from .a import A\n", "house.b": back}
    if "c" not in back.rpartition(" ")[2]:
        del sources["house.c"]
    expected = [frozenset(sources) - {"house"}]
    assert circles(import_graph(sources, for_types=True)) == expected
    assert circles(import_graph(sources, for_types=False)) == (expected if runs else [])


def test_imports_in_one_direction_are_no_circle() -> None:
    assert not circles(import_graph(ONE_WAY, for_types=True))
