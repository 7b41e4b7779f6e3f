"""Rounds of load on logs in PostgreSQL, `kill -9` of the broker and crashes of its database: see kill.py, and claims.py
for what is promised.

python -m tests.faults.logs.postgresql_kill --rounds 20 --kills 5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.faults.logs.kill import KillRound
from tests.faults.rounds import kill_many, play_with_processes
from tests.faults.store.postgresql_kill import crash_and_start
from tests.postgresql_server import server, stop_server

MODULE: Final = "tests.faults.logs.postgresql_kill"


def run_round(folder: Path, seed: int, *, kills_count: int) -> KillRound:
    """One round in this folder. Raises what went wrong."""
    database, random = server(), Random(seed)
    played = KillRound(
        folder,
        random,
        kills_count=kills_count,
        store=f'\n[store]\nengine = "postgresql"\nurl = "{database.new_schema()}"\n',
        disturb=lambda: crash_and_start(database, random),
    )
    return play_with_processes(MODULE, seed, folder, played)


def _told(played: KillRound) -> str:
    claims = played.claims.values()
    return (
        f"{played.disturbed_count} crashes of the database, {sum(len(each.of_value) for each in claims)} records sent, "
        f"{sum(len(each.receipted) for each in claims)} receipted, {sum(each.seen_count for each in claims)} seen"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    try:
        return kill_many(MODULE, __doc__, run_round, _told, arguments, kills_count=5)
    finally:
        stop_server()


if __name__ == "__main__":
    sys.exit(main())
