"""Reclaim the space of deleted records at once. LevelDB does so by itself, gradually, while it is written to; a tool
asks for it after a backlog has gone or before a folder is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .. import keys
from ..engine import Change, Engine, delete

_BATCH_COUNT: Final = 5_000
"""Number of records deleted in one batch."""


def compact(engine: Engine, on_progress: Callable[[int, int], None] | None = None) -> tuple[int, int]:
    """Delete records that no later run reads (messages that were only paged out), and rewrite the tables.

    `on_progress` gets the number of families done, and of all. Returns the size in bytes before and after, about. Needs
    as much free space as one family holds, for a while; costs the time to read and write everything. Raises
    EngineError.
    """
    before_bytes = engine.size_bytes()
    _delete_paged(engine)
    # A sync begins a new log, so the old one goes.
    engine.write([], sync=True)
    families = sorted(keys.FAMILIES)
    for place, family in enumerate(families):
        engine.compact(*keys.family_range(family))
        if on_progress is not None:
            on_progress(place + 1, len(families))
    return before_bytes, engine.size_bytes()


def _delete_paged(engine: Engine) -> None:
    changes: list[Change] = []
    for key in engine.iterate_keys(*keys.family_range(keys.PAGED)):
        changes.append(delete(key))
        if len(changes) >= _BATCH_COUNT:
            engine.write(changes, sync=False)
            changes = []
    if changes:
        engine.write(changes, sync=False)
