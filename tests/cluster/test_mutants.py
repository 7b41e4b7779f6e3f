"""The simulation of moving hubs notices hubs that are wrong: each mistake below breaks a law, and that law.

A law that no mistake breaks says nothing. Each mistake is played from a seed on that has shown it: when histories
have changed the next one does. `python -m tests.cluster.test_mutants` looks for the first seed, from 0 on.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import pytest

from sluiceway.cluster.host import ShardsHere
from sluiceway.protocols.stomp import message_renderer
from sluiceway.protocols.stomp.relaying.far import Far
from sluiceway.protocols.stomp.relaying.kept import Kept
from sluiceway.simulation import run
from sluiceway.store.queue_records import QueueRecords
from tests.cluster import moving

SEEDS_MAX: Final = 60
"""Seeds within which each mistake has to show."""


def _confirms_at_once(_records: QueueRecords, _first: int, _end: int, callback: Any) -> None:
    """Say RECEIPT before anything is stored."""
    callback("shared")


def _forgets_marks(_failures_count: int) -> bytes:
    """Redeliver as if it were the first time."""
    return b""


def _forgets_acks(_records: QueueRecords, _sequences: Sequence[int]) -> None:
    """Store nothing of ACKs."""


def _knows_of_no_doubt(far: Far, take_kept: Callable[[Far], list[Kept]] = Far.take_kept) -> list[Kept]:
    """Send again what may have arrived, as if it were new."""
    kept = take_kept(far)
    for each in kept:
        each.in_doubt = False
    return kept


def _acknowledges_twice(
    records: QueueRecords,
    sequences: Sequence[int],
    settled: Callable[[QueueRecords, Sequence[int]], None] = QueueRecords.settled,
) -> None:
    """Store each ACK a second time, for the message behind."""
    settled(records, sequences)
    behind = sequences[-1] + 1
    if behind < records.saved_to:
        settled(records, (behind,))


def _serves_on(_shards: ShardsHere, _shard: int) -> None:
    """Continue with a shard whose epoch is lost, as soon as there is a session again."""


@attrs.frozen
class Mutant:
    """A mistake, and what shows it."""

    target: object
    name: str
    mistake: Callable[..., object]
    law: str
    """Beginning of the words about the law that it breaks."""
    seed: int
    """Seed to begin with: it did."""
    laws_hold: Callable[[int], Awaitable[None]] = moving.laws_hold


MUTANTS: Final[Mapping[str, Mutant]] = {
    "confirms before it is stored": Mutant(QueueRecords, "when_saved", _confirms_at_once, "nothing is lost", 27),
    "forgets marks": Mutant(message_renderer, "_redelivery_lines", _forgets_marks, "marked", 0),
    "forgets ACKs": Mutant(QueueRecords, "settled", _forgets_acks, "marked", 0),
    "acknowledges twice": Mutant(QueueRecords, "settled", _acknowledges_twice, "nothing is lost", 2),
    "serves an epoch that it lost": Mutant(ShardsHere, "abandon", _serves_on, 'going on: {"shard', 3),
    "forgets doubts": Mutant(Far, "take_kept", _knows_of_no_doubt, "marked", 6),
}


def words_of(error: BaseException) -> list[str]:
    """Return what all errors in a group say."""
    if isinstance(error, BaseExceptionGroup):
        return [words for each in error.exceptions for words in words_of(each)]
    return [str(error) or type(error).__name__]


def first_broken(mutant: Mutant, first: int) -> tuple[int, list[str]] | None:
    """Return the first seed with which this mistake breaks a law, and what is said."""
    for seed in range(first, SEEDS_MAX):
        try:
            run(mutant.laws_hold, seed, seed=seed)
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            return seed, words_of(error)
    return None


@pytest.mark.parametrize("mistake", MUTANTS)
@pytest.mark.timeout(300)
def test_a_wrong_hub_breaks_a_law(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[mistake]
    monkeypatch.setattr(mutant.target, mutant.name, mutant.mistake)
    found = first_broken(mutant, mutant.seed)
    assert found is not None
    assert any(words.startswith(mutant.law) for words in found[1]), found


def main() -> None:
    """Print the first seed that each mistake breaks a law with."""
    for name, mutant in MUTANTS.items():
        if not sys.argv[1:] or any(word in name for word in sys.argv[1:]):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(mutant.target, mutant.name, mutant.mistake)
                print(f"{name}: {first_broken(mutant, 0)}", flush=True)


if __name__ == "__main__":
    main()
