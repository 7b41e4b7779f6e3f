"""Times to send a heart-beat, and the silence after which the peer counts as dead. b23-b27.

Two timers a connection, each re-armed only when it fires, so that traffic costs nothing. They fire on ticks that all
connections with the same interval share: ten thousand of them wake the loop a few times a second, not thousands of
times. A beat is due after 80 % of the agreed interval without bytes taken by the kernel (a tick less at worst). The
peer is dead after `grace_factor` times its interval without a byte, but never for time in which the broker did not
read. While reading is paused the clock stands still. When the time is up, the sockets get one more turn before the
verdict, since the broker's own process may have been stopped or busy.

Pure: clock and timers are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from typing import Final

from ...queues.environment import Scheduling, TimerHandle
from .errors import ProtocolError

SECOND_LOOK_SECONDS: Final = 0.2
EARLY_SECONDS: Final = 0.001
"""Tolerance for a timer that fires too early. Without it a rest from rounding would become a timer of no length, again
and again.
"""

BEAT_SHARE: Final = 0.8
TICK_SHARE: Final = 1 / 40
"""Length of a tick as a share of the time until a beat is due. Shorter ticks wake the loop more often, longer ones send
more beats.
"""
LOOK_SHARE: Final = 1 / 100
"""Length of a tick of the read timer as a share of the time after which silence counts as death, which comes that much
later at worst.
"""


class HeartBeat:
    """Heart-beats of one connection, both directions. Intervals in milliseconds; 0 switches a direction off."""

    __slots__ = (
        "_beat",
        "_clock",
        "_dead",
        "_last_read_seconds",
        "_last_written",
        "_paused",
        "_read_seconds",
        "_read_timer",
        "_scheduling",
        "_suspect",
        "_write_seconds",
        "_write_timer",
    )

    def __init__(
        self,
        scheduling: Scheduling,
        clock: Callable[[], float],
        *,
        read_every_ms: int,
        write_every_ms: int,
        grace_factor: float,
        last_written: Callable[[], float],
        beat: Callable[[], None],
        dead: Callable[[float], None],
    ) -> None:
        """`last_written`: when the kernel last took bytes; `beat`: send one; `dead`: told the silence in seconds."""
        self._scheduling = scheduling
        self._clock = clock
        self._read_seconds = read_every_ms / 1000 * grace_factor
        self._write_seconds = write_every_ms / 1000 * BEAT_SHARE
        self._last_written = last_written
        self._beat = beat
        self._dead = dead
        self._last_read_seconds = clock()
        self._paused = False
        self._suspect = False
        self._read_timer: TimerHandle | None = None
        self._write_timer: TimerHandle | None = None
        if self._write_seconds:
            self._arm_write(self._write_seconds)
        if self._read_seconds:
            self._arm_read(self._read_seconds)

    def bytes_arrived(self) -> None:
        """The peer lives: any byte counts, also of half a frame."""
        self._last_read_seconds = self._clock()
        self._suspect = False

    def reading_paused(self) -> None:
        """Stop the clock of the peer: the broker does not read from now on."""
        self._paused = True

    def reading_resumed(self) -> None:
        """Start the clock of the peer anew: the broker reads again."""
        self._paused = False
        self.bytes_arrived()

    def stop(self) -> None:
        """Cancel all timers."""
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._read_timer = self._write_timer = None

    def _arm_write(self, delay_seconds: float) -> None:
        """Down to a tick, so that no beat is late."""
        now, tick_seconds = self._clock(), self._write_seconds * TICK_SHARE
        due_seconds = floor((now + delay_seconds) / tick_seconds) * tick_seconds
        if due_seconds <= now:
            due_seconds += tick_seconds
        self._write_timer = self._scheduling.call_later(due_seconds - now, self._write_due)

    def _write_due(self) -> None:
        quiet_seconds = self._clock() - self._last_written()
        if quiet_seconds >= self._write_seconds * (1 - TICK_SHARE) - EARLY_SECONDS:
            self._beat()
            quiet_seconds = 0.0
        self._arm_write(self._write_seconds - quiet_seconds)

    def _arm_read(self, delay_seconds: float) -> None:
        """Arm the read timer, up to a tick later, so that no time is taken from the peer."""
        now, tick_seconds = self._clock(), self._read_seconds * LOOK_SHARE
        due_seconds = ceil((now + delay_seconds) / tick_seconds) * tick_seconds
        self._read_timer = self._scheduling.call_later(max(0.0, due_seconds - now), self._read_due)

    def _read_due(self) -> None:
        if self._paused:
            self._arm_read(self._read_seconds)
            return
        silent_seconds = self._clock() - self._last_read_seconds
        if silent_seconds < self._read_seconds - EARLY_SECONDS:
            self._arm_read(self._read_seconds - silent_seconds)
        elif not self._suspect:
            self._suspect = True
            self._arm_read(min(SECOND_LOOK_SECONDS, self._read_seconds))
        else:
            self._read_timer = None
            self._dead(silent_seconds)


def heart_beat_missed(silent_seconds: float) -> ProtocolError:
    """The ERROR for a peer that counts as dead."""
    return ProtocolError(
        "heart-beat-missed",
        f"no bytes from you for {silent_seconds:.1f} seconds",
        "The agreed heart-beat did not come. Send an EOL in time, or agree on a longer interval in CONNECT.",
    )
