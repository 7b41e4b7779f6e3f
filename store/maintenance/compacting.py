"""Gives back the space of what was deleted. LevelDB does that by itself while it is written to, by and by; who wants it
now, because a backlog has gone or a folder is to be copied, asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .. import keys
from ..engine import Change, Engine, delete

_BATCH_COUNT: Final = 5_000
"""Records deleted at once."""


def compact(engine: Engine, on_progress: Callable[[int, int], None] | None = None) -> tuple[int, int]:
    """Deletes what belongs to no later run (messages that were only paged out), and rewrites the tables.

    `on_progress` gets how many families of how many are done. Returns the size in bytes before and after, about. Needs
    as much free space as one family holds, for a while; costs the time to read and write all. Raises EngineError.
    """
    before_bytes = engine.size_bytes()
    _delete_paged(engine)
    # Syncs what was written, and so begins a new log: the old one goes.
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
