"""Files of large bodies of one broker: assembly, and reports for the log."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.flow import FlowManager
from sluiceway.protocols.log import get_logger
from sluiceway.queues.large import BodyError
from sluiceway.store.directory import MissingError
from sluiceway.store.io_threads import InlineRunner, IoThread, Runner
from sluiceway.store.large import AllMissingError, BodyFiles, BodyShelf
from sluiceway.store.marks import MARK, MarkedFolder
from sluiceway.store.recovery import Recovered

log = get_logger("sluiceway.bodies")

Submit = Callable[[Callable[[], None]], None]


def body_files(
    shelf: BodyShelf,
    *,
    manager: FlowManager,
    clock: Callable[[], float],
    submit: Submit | None = None,
    schedule: Submit | None = None,
    runners: tuple[Runner, Runner] | None = None,
) -> BodyFiles:
    """Make the store of large bodies on this shelf. `submit` (from any thread to the loop): with threads; `schedule`
    (on the loop, later): without, for virtual time; `runners`: with these, to write and to read. `recover` is due.
    """
    writer: Runner
    reader: Runner
    if runners is not None:
        writer, reader = runners
    elif submit is not None:
        writer = IoThread("sluiceway bodies writer", submit)
        reader = IoThread("sluiceway bodies reader", submit)
    else:
        assert schedule is not None, "one of the two"
        writer, reader = InlineRunner(schedule), InlineRunner(schedule)
    return BodyFiles(shelf, writer=writer, reader=reader, manager=manager, clock=clock, warn=_warn)


def recover_bodies(bodies: BodyFiles, recovered: Recovered | None, marked: MarkedFolder | None = None) -> None:
    """Call `BodyFiles.recover`, and log the result. Blocks.

    Raises MissingError if the folder has no mark, as those of earlier versions, and nothing that the store says of it.
    """
    if recovered is None:
        found = bodies.recover({})
    else:
        must_have_some = marked is not None and not marked.has_mark
        try:
            found = bodies.recover(
                recovered.body_counts, keeps_all=recovered.may_miss_bodies, must_have_some=must_have_some
            )
        except AllMissingError as error:
            assert marked is not None, "or none would be asked for"
            raise MissingError(
                f"{error}. Mount the disk that has them, or bring them back from a backup; or, if all of them may be "
                f"lost, make an empty file {marked.path / MARK}: then consumers of these messages get an ERROR."
            ) from error
        if marked is not None and recovered.body_counts:
            _mark(marked)
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
            because="the store was damaged, and their messages may be among the lost ones",
            remedy="copy the data folder before a later start removes them",
        )
    if found.removed_count:
        log.info("large bodies of an earlier run removed", files=found.removed_count, bytes=found.removed_bytes)


def _mark(marked: MarkedFolder) -> None:
    """Mark the folder at the start, for bodies of earlier versions. A full disk must not keep consumers away."""
    try:
        marked.before_writing()
    except OSError as error:
        log.warning(
            "cannot mark the folder of large bodies",
            error=str(error),
            effect="a start where its disk is not mounted is not noticed; tried again with the next body",
        )


def _warn(error: BodyError) -> None:
    log.warning("large message", reason=str(error))
