"""The files of large bodies of one broker: put together, and what they have to say to the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sluiceway.flow import FlowManager
from sluiceway.protocols.log import get_logger
from sluiceway.queues.large import BodyError
from sluiceway.store.bodythread import BodyThread, InlineRunner, Runner
from sluiceway.store.large import BodyFiles
from sluiceway.store.recovery import Recovered

log = get_logger("sluiceway.bodies")

Submit = Callable[[Callable[[], None]], None]


def body_files(
    folder: Path,
    *,
    manager: FlowManager,
    clock: Callable[[], float],
    submit: Submit | None = None,
    schedule: Submit | None = None,
) -> BodyFiles:
    """Large bodies in `folder`, which is there. `submit` (from any thread to the loop): with threads; `schedule` (on
    the loop, later): without, for virtual time. `recover` is due.
    """
    writer: Runner
    reader: Runner
    if submit is not None:
        writer = BodyThread("sluiceway bodies writer", submit)
        reader = BodyThread("sluiceway bodies reader", submit)
    else:
        assert schedule is not None, "one of the two"
        writer, reader = InlineRunner(schedule), InlineRunner(schedule)
    return BodyFiles(folder, writer=writer, reader=reader, manager=manager, clock=clock, warn=_warn)


def recover_bodies(bodies: BodyFiles, recovered: Recovered | None) -> None:
    """`BodyFiles.recover`, and say what was found. Blocks."""
    if recovered is None:
        found = bodies.recover({})
    else:
        found = bodies.recover(recovered.body_counts, keeps_all=recovered.may_miss_bodies)
    if found.missing:
        log.error(
            "bodies of large messages are missing",
            count=len(found.missing),
            remedy="something else than the broker has removed their files; consumers of these messages get an ERROR; "
            "`sluiceway store check` names the files",
        )
    if found.unnamed_count:
        log.warning(
            "large bodies that no message has are kept",
            files=found.unnamed_count,
            bytes=found.unnamed_bytes,
            because="the store was damaged, and the messages that had them may be among what is lost",
            remedy="copy the data folder before a later start removes them",
        )
    if found.removed_count:
        log.info("large bodies of an earlier run removed", files=found.removed_count, bytes=found.removed_bytes)


def _warn(error: BodyError) -> None:
    log.warning("large message", reason=str(error))
