"""Rounds of load, `kill -9` of the broker and crashes of its database: see kill.py, and claims.py for what is promised.

python -m tests.faults.store.postgresql_kill --rounds 100 --kills 5
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.faults.rounds import kill_many, play_with_processes
from tests.faults.store.kill import KillRound
from tests.postgresql_server import Server, server, stop_server

MODULE: Final = "tests.faults.store.postgresql_kill"
DOWN_SECONDS_MAX: Final = 0.3


def crash_and_start(database: Server, random: Random) -> None:
    """Stop the database as a power cut does, and start it a moment later."""
    database.stop("immediate")
    time.sleep(DOWN_SECONDS_MAX * random.random())
    database.start()


def run_round(folder: Path, seed: int, *, kills_count: int) -> KillRound:
    """One round in this folder. Raises what went wrong."""
    database, random = server(), Random(seed)
    played = KillRound(
        folder,
        random,
        kills_count=kills_count,
        store=f'[store]\nengine = "postgresql"\nurl = "{database.new_schema()}"\n',
        disturb=lambda: crash_and_start(database, random),
    )
    return play_with_processes(MODULE, seed, folder, played)


def _told(played: KillRound) -> str:
    claims = played.claims
    return (
        f"{played.disturbed_count} crashes of the database, {len(claims.messages)} sent, {claims.receipted_count} "
        f"receipted, {claims.delivered_count} delivered, {claims.came_again_count} of them again"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    try:
        return kill_many(MODULE, __doc__, run_round, _told, arguments, kills_count=5)
    finally:
        stop_server()


if __name__ == "__main__":
    sys.exit(main())
