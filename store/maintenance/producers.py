"""Lines about producers: what queues and logs remember, so that what is sent again after an import is not taken twice.

Of one producer in one queue the highest sequence counts, whichever of the store and the export has it. Producers of a
log belong to the log with their identity: the store's own record stays, and a broker drops one of another log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import error as StructError

from ...queues.logs.producers import KnownProducer, ProducerSnapshot
from ...queues.names import DestinationNameError, Kind, parse
from ...queues.producers import NO_SEQUENCE, ORIGIN_BYTES_MAX, Remembered, name_on_disk, origin_on_disk
from .. import keys
from ..engine import Change, Engine, put
from ..keys import StoreFormatError
from ..log_producers import decode_producers, encode_producers, kept_producers
from ..states import decode_producer, encode_producer
from .lines import DuplicateIdLine, ExportFormatError, LogProducersLine, ProducerLine
from .records import QueueName

QueueProducerLine = ProducerLine | DuplicateIdLine

# ---------------------------------------------------------------------- out


def producer_lines(
    engine: Engine,
    queues: Mapping[int, QueueName],
    wanted: Callable[[str], bool],
    left_out: Callable[[str], None],
) -> Iterator[QueueProducerLine | LogProducersLine]:
    """Yield what wanted queues and logs remember; `left_out` gets what can't be read. Raises EngineError."""
    for key, value in engine.iterate(*keys.family_range(keys.PRODUCER)):
        try:
            queue_id, name = keys.parse_producer_key(key)
            sequence, used_ms = decode_producer(value)
        except StoreFormatError as error:
            left_out(f"record {key.hex()}: {error}")
            continue
        queue = queues.get(queue_id)
        if queue is None:
            left_out(f"record {key.hex()}: a producer of queue {queue_id}, which has no record and no messages")
        elif wanted(queue.name):
            origin, place = origin_on_disk(name, sequence), (queue.name, queue.topic, queue.priority)
            if origin[1] == NO_SEQUENCE:
                yield DuplicateIdLine(*place, origin[0], used_ms)
            else:
                yield ProducerLine(*place, *origin, used_ms)
    snapshots = kept_producers(engine, lambda key, error: left_out(f"record {key}: {error}"))
    for log, snapshot in snapshots.items():
        if wanted(log):
            known = tuple((each.name, each.sequence, each.used_ms, each.places) for each in snapshot.producers)
            yield LogProducersLine(log, snapshot.log_id, snapshot.end_index, known)


# ---------------------------------------------------------------------- in


class ProducersImport:
    """Import of these lines, with a count."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._taken: dict[bytes, Remembered] = {}
        self.count = 0

    def take(self, number: int, line: QueueProducerLine, queue_id: int) -> Change:
        """Return the change for the `number`th line. Raises ExportFormatError for what can't be stored, and
        EngineError.
        """
        origin = (line.id, NO_SEQUENCE) if isinstance(line, DuplicateIdLine) else (line.producer, line.sequence)
        if not 0 < len(origin[0].encode()) <= ORIGIN_BYTES_MAX:
            raise ExportFormatError(f"line {number}: a name of a producer, or an id, has 1 to {ORIGIN_BYTES_MAX} bytes")
        key = keys.producer_key(queue_id, name_on_disk(origin))
        before = self._taken.get(key) or self._stored(key) or (NO_SEQUENCE, 0)
        remembered = self._taken[key] = max(origin[1], before[0]), max(line.used_ms, before[1])
        self.count += 1
        return put(key, encode_producer(*remembered))

    def take_log(self, number: int, line: LogProducersLine) -> list[Change]:
        """Return the changes for the `number`th line; none if the store knows producers of the log. Raises
        ExportFormatError for what can't be stored, and EngineError.
        """
        try:
            if parse(line.log).kind is not Kind.LOG:
                raise ExportFormatError(f"line {number}: {line.log!r} is no log")
            known = tuple(KnownProducer(*each) for each in line.producers)
            key = keys.log_producers_key(line.log)
            value = encode_producers(ProducerSnapshot(line.log_id, line.end_index, known))
            decode_producers(value)
        except (StructError, StoreFormatError, DestinationNameError) as error:
            raise ExportFormatError(f"line {number}: {error}") from error
        if key in self._taken:
            raise ExportFormatError(f"line {number}: a second line for the producers of {line.log}")
        self._taken[key] = (0, 0)
        self.count += 1
        return [] if self._engine.get(key) is not None else [put(key, value)]

    def _stored(self, key: bytes) -> Remembered | None:
        """Return what the store has; None: nothing that can be read."""
        value = self._engine.get(key)
        try:
            return None if value is None else decode_producer(value)
        except StoreFormatError:
            return None
