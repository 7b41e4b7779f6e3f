"""Files of large bodies that the records of one queue name: each is kept as long as a record on disk may name it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from functools import partial

from ..queues.blocks import places_of
from ..queues.large import LargeMessage
from ..queues.message import Message
from .large import BodyFiles


class KeptBodies:
    """The body files of one shelf. Bound: a number for each large message that is stored."""

    __slots__ = ("_bodies", "_files", "_released")

    def __init__(self, bodies: BodyFiles | None) -> None:
        self._bodies = bodies
        self._files: dict[int, int] = {}
        """Files by sequence: those of which the disk has records, for elements that are not settled."""
        self._released: list[int] = []
        """Files whose elements left: kept until the disk knows it."""

    def restore(self, files: dict[int, int]) -> None:
        """Restore the files that records of an earlier run name, by sequence."""
        self._files = files if self._bodies is not None else {}

    def keep(self, sequences: SequenceOf[int], messages: list[Message]) -> None:
        """Note that a record with these elements is about to be written."""
        if self._bodies is None or not self._bodies.references_count:
            return
        for sequence, message in zip(sequences, messages, strict=True):
            if isinstance(message, LargeMessage) and sequence not in self._files:
                message.body.keep()
                self._files[sequence] = message.body.file_id

    def left(self, base: int, bits: int) -> bool:
        """Note that these places of the block that begins at `base` are settled. Returns whether any of them has a
        file.
        """
        if not self._files:
            return False
        gone = [base + place for place in places_of(bits) if base + place in self._files]
        self._released += [self._files.pop(sequence) for sequence in gone]
        return bool(gone)

    def all_left(self) -> None:
        """Release all files: the queue is deleted."""
        self._released += self._files.values()
        self._files.clear()

    def take_released(self) -> list[Callable[[], None]]:
        """Return callbacks that release the files of elements that left; call them when the disk knows that the
        elements left. Called sooner, a power cut would bring the elements back without their bodies. Empty if none
        left.
        """
        if not self._released or self._bodies is None:
            return []
        file_ids, self._released = self._released, []
        return [partial(self._bodies.forget_all, file_ids)]
