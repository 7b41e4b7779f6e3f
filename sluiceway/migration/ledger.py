"""The ledger of a move of messages: a file that says of each message how far it has come, so that a run that was killed
can be continued.

Messages are moved in batches, and a batch has three steps, each a line of JSON that is added to the file (the first: a
line for each queue), below a line for each run:

    1. `batch`: the keys of its messages, before the first of them is sent. Synced.
    2. `moved`: the target has confirmed all of them. Synced, before the source is told.
    3. `acknowledged`: the source has confirmed that it has dropped them. Not synced: without this line they count as in
       question, which costs nothing but a look at each that comes again.

What a batch without its second line held may be at the target or not (*in doubt*); what one without its third held is
at the target, and may come from the source again (*landed*). Everything else is settled, and only counted: memory is
that of the batches in question.

A key is what a message can be known by when it comes again: exact ones (`=…`) are made of an id that is unique, others
(`~…`) of the content, which two messages may share.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import attrs

VERSION: Final = 1
REMEMBERED_SECONDS: Final = 12 * 3600
"""Time for which the target surely knows the id of a message: half of what `producers_keep_seconds` is by default."""
_TITLE: Final = b'{"ledger":'
"""Beginning of the first line."""
EXACT: Final = "="
"""First character of exact keys."""


class LedgerError(Exception):
    """The file can't be used. The message is for people."""


@attrs.define
class Tally:
    """Counts of one queue, of all runs."""

    seen_count: int = 0
    """Different messages that came from the source."""
    moved_count: int = 0
    """Messages among these that the target has confirmed."""
    doubled_count: int = 0
    """Messages that were sent again, since it was not known whether they had arrived: each may be there twice."""
    resent_count: int = 0
    """Messages that were sent again, and that the target has taken once: it knows their ids."""
    known_count: int = 0
    """Messages that came again and were known to have arrived: acknowledged, and not sent again."""
    doubt: Counter[str] = attrs.field(factory=Counter)
    """Keys of earlier runs in doubt."""
    landed: Counter[str] = attrs.field(factory=Counter)
    """Keys of earlier runs at the target that may come again."""


@attrs.frozen
class Arrival:
    """A message that came from the source."""

    queue: str
    key: str


class Standing(Enum):
    """Knowledge of a message that came."""

    FRESH = "fresh"
    """New."""
    AGAIN = "again"
    """Message in doubt: to be sent again."""
    RESENT = "resent"
    """Message in doubt whose id the target knows if it has it: to be sent again, and taken once."""
    TWICE = "twice"
    """Landed, as far as its content tells: to be sent again, since another one may have the same."""
    KNOWN = "known"
    """Landed: not to be sent."""


Part = Mapping[Standing, Sequence[str]]
"""Messages of one queue in a batch, by what is known of them: keys."""


@attrs.define
class _Batch:
    parts: dict[str, Part] = attrs.field(factory=dict)
    is_moved: bool = False


class Ledger:
    """The file, open for one run. A context manager that closes it."""

    def __init__(self, path: Path, source: str, target: str, *, clock: Callable[[], float] = time.time) -> None:
        """Open or make it. `source` and `target`: the two brokers, as they are shown. `clock`: seconds since the epoch.
        Raises LedgerError: it is in use, of other brokers, damaged, or not a ledger.
        """
        self.path = path
        self.tallies: dict[str, Tally] = {}
        """Counts by queue, in the order in which they came."""
        self.is_continued = False
        """Whether there was an earlier run."""
        self._clock = clock
        self._run_at_seconds = 0.0
        """Start of the run that is read, or of this one."""
        self._doubt_since_seconds: float | None = None
        """Start of the first run that left messages in doubt which have not come since; None: there are none."""
        self._is_recent = False
        """Whether the target still knows the ids of all messages in doubt."""
        self._open: dict[int, _Batch] = {}
        self._next_batch = 1
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"the ledger {path} can't be opened: {error.strerror}") from error
        try:
            self._begin(source, target)
        except OSError as error:
            os.close(self._descriptor)
            raise LedgerError(f"the ledger {path} can't be used: {error.strerror}") from error
        except LedgerError:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._descriptor)

    # ------------------------------------------------------------------ the steps of a batch

    def begin(self, arrivals: Sequence[Arrival]) -> tuple[int, list[Standing]]:
        """Note a batch, before it is sent. Returns its number, and what is known of each message. Synced. Raises
        LedgerError.
        """
        number = self._next_batch
        parts: dict[str, dict[Standing, list[str]]] = {}
        standings = []
        used: Counter[tuple[str, str, str]] = Counter()
        for arrival in arrivals:
            standing = self._standing(arrival, used)
            standings.append(standing)
            parts.setdefault(arrival.queue, {}).setdefault(standing, []).append(arrival.key)
        for queue, part in parts.items():
            keys = {standing.value: each for standing, each in part.items()}
            self._write({"batch": number, "queue": queue, **keys})
        self._sync()
        for queue, part in parts.items():
            self._take_batch(number, queue, part)
        return number, standings

    def _standing(self, arrival: Arrival, used: Counter[tuple[str, str, str]]) -> Standing:
        """`used`: what messages of the same batch have been taken for."""
        queue, key = arrival.queue, arrival.key
        # Whether the source says that it has delivered it before does not count: not all of them are careful with that.
        tally, is_exact = self.tally(queue), key.startswith(EXACT)
        for name, counts, standing in (
            ("landed", tally.landed, Standing.KNOWN if is_exact else Standing.TWICE),
            ("doubt", tally.doubt, Standing.RESENT if is_exact and self._is_recent else Standing.AGAIN),
        ):
            if counts[key] > used[queue, key, name]:
                used[queue, key, name] += 1
                return standing
        return Standing.FRESH

    def moved(self, number: int) -> None:
        """Note that the target has confirmed a batch. Synced. Raises LedgerError."""
        self._write({"moved": number})
        self._sync()
        self._take_moved(number)

    def acknowledged(self, number: int) -> None:
        """Note that the source has dropped a batch. Raises LedgerError."""
        self._write({"acknowledged": number})
        del self._open[number]

    def tally(self, queue: str) -> Tally:
        """Return the counts of a queue."""
        return self.tallies.setdefault(queue, Tally())

    def open_count(self, queue: str) -> int:
        """Return how many messages of this run are in batches that are not done."""
        parts = (batch.parts.get(queue, {}) for batch in self._open.values())
        return sum(len(keys) for part in parts for keys in part.values())

    # ------------------------------------------------------------------ the file

    def _begin(self, source: str, target: str) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(f"the ledger {self.path} is in use by another run: wait for its end") from None
        title = {"ledger": VERSION, "source": source, "target": target}
        whole_bytes = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                is_whole = line.endswith(b"\n")
                if not is_whole and (number or _TITLE.startswith(line[: len(_TITLE)])):
                    break  # torn: the run was killed while it wrote, before it acted on it
                self._read_line(number, line, title)
                whole_bytes += len(line)
        os.ftruncate(self._descriptor, whole_bytes)
        if not whole_bytes:
            self._write(title)
        self._end_run()
        self._run_at_seconds = self._clock()
        since = self._doubt_since_seconds
        self._is_recent = since is not None and 0 <= self._run_at_seconds - since < REMEMBERED_SECONDS
        self._write({"run": int(self._run_at_seconds)})
        self._sync()
        folder = os.open(self.path.absolute().parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read_line(self, number: int, line: bytes, title: Mapping[str, Any]) -> None:
        try:
            entry = json.loads(line)
            if number == 0:
                if entry.get("ledger") != VERSION:
                    raise ValueError
                if entry != title:
                    raise LedgerError(
                        f"the ledger {self.path} is of a move from {entry['source']} to {entry['target']}: "
                        "name another file with --ledger"
                    )
                self.is_continued = True
            elif "batch" in entry:
                part = {standing: entry.get(standing.value, ()) for standing in Standing}
                self._take_batch(int(entry["batch"]), entry["queue"], part)
            elif "run" in entry:
                self._end_run()
                self._run_at_seconds = float(entry["run"])
            elif "moved" in entry:
                self._take_moved(entry["moved"])
            else:
                del self._open[entry["acknowledged"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LedgerError(
                f"{self.path}, line {number + 1}, is damaged, or of no ledger: name another file with --ledger. (With "
                "another one, messages that a run had left in question are sent again, and not counted.)"
            ) from None

    def _end_run(self) -> None:
        """Take what the run before has left open."""
        for batch in self._open.values():
            for queue, part in batch.parts.items():
                tally = self.tally(queue)
                for standing, keys in part.items():
                    # What was at the target before stays there, whether or not it was sent again.
                    is_landed = batch.is_moved or standing in (Standing.TWICE, Standing.KNOWN)
                    (tally.landed if is_landed else tally.doubt).update(keys)
        self._open.clear()
        if not any(tally.doubt for tally in self.tallies.values()):
            self._doubt_since_seconds = None
        elif self._doubt_since_seconds is None:
            self._doubt_since_seconds = self._run_at_seconds

    def _take_batch(self, number: int, queue: str, part: Part) -> None:
        tally = self.tally(queue)
        for standing, keys in part.items():
            match standing:
                case Standing.FRESH:
                    tally.seen_count += len(keys)
                case Standing.AGAIN:
                    tally.doubled_count += len(keys)
                    tally.doubt = tally.doubt - Counter(keys)
                case Standing.RESENT:
                    tally.resent_count += len(keys)
                    tally.doubt = tally.doubt - Counter(keys)
                case Standing.TWICE:
                    tally.doubled_count += len(keys)
                    tally.landed = tally.landed - Counter(keys)
                case Standing.KNOWN:
                    tally.known_count += len(keys)
                    tally.landed = tally.landed - Counter(keys)
        self._open.setdefault(number, _Batch()).parts[queue] = part
        self._next_batch = max(self._next_batch, number + 1)

    def _take_moved(self, number: int) -> None:
        batch = self._open[number]
        batch.is_moved = True
        for queue, part in batch.parts.items():
            confirmed = (Standing.FRESH, Standing.AGAIN, Standing.RESENT)
            self.tally(queue).moved_count += sum(len(part.get(standing, ())) for standing in confirmed)

    def _write(self, entry: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} can't be written: {error.strerror}") from error

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} can't be synced: {error.strerror}") from error
