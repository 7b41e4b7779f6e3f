"""A clock that counts work: how much is done between two returns to the loop, whatever the machine does meanwhile.

*Unit.* A statement of the product's packages; a call is two, a pass of a comprehension one (`counted_code`). What C
does with many things in one call is weighed by their number: `sorted`, `list`, `set`, `dict`, `json.dumps` and their
like (`_WEIGHED`). So nothing that Python code does n times costs less than n.

*Budget.* UNITS_PER_MS units count as a millisecond of a slow machine, so STEP_UNITS_MAX is what 5 ms are. Calibrated
with eleven of the cases and `time.thread_time`: 11,000 to 25,000 events of a tracer went into a millisecond of one core
of a two-core virtual machine (CPython 3.11; 4,000 where objects are made by the thousand and the garbage collector
looks at them). Units are 0.89 to 1.02 of such events in the largest steps of thirty cases. `perf gaps` shows real gaps.

*Clock.* While it counts, trio's virtual clock and the clocks that measure work (of the admin views, of rationed
answers) advance with the work. So time slices end where they would end on a slow machine, always at the same event.

*Garbage collector.* Off while it counts: when it comes, and whose garbage it finds, depends on the tests before. What a
full look costs is measured by `perf gaps`.

*Threads.* What one does in earnest is done by the loop here, and not counted: jobs of logs and of large bodies, and
what the store writes.

*Step.* What can't be interrupted: one dispatch, one callback at the end of a turn (the dispatcher looks at the clock
behind each), or what one task does otherwise between two checkpoints.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import attrs
import trio
from trio.testing import MockClock

from sluiceway.dispatcher import core as dispatcher_core
from sluiceway.dispatcher.context import DispatchContext, ReadyLists
from sluiceway.store.io_threads import Job
from sluiceway.store.memory import MemoryEngine
from tests.architecture.sources import PACKAGES, ROOT
from tests.limits import counted_code

UNITS_PER_MS: Final = 8_000
STEP_UNITS_MAX: Final = 5 * UNITS_PER_MS

_FOLDERS: Final = tuple(f"{ROOT / name}/" for name in PACKAGES)
_ELSEWHERE: Final[tuple[tuple[type, str], ...]] = ((Job, "run"), (MemoryEngine, "write"))


@attrs.frozen
class Step:
    """One piece of work that nothing could interrupt."""

    units: int
    label: str
    """Whose it was: a dispatch context, or a task."""
    by_function: tuple[tuple[str, int], ...]
    """Where the work was done, the most first; known with LAW_WHERE=1 only."""

    def __str__(self) -> str:
        where = "\n".join(f"    {units:>9,}  {name}" for name, units in self.by_function[:12])
        if not counted_code.BY_FUNCTION:
            where = "    (with LAW_WHERE=1 in the environment: by which functions)"
        return f"{self.units:,} units ({self.units / UNITS_PER_MS:.1f} ms) in one step of {self.label}:\n{where}"


class Counting(trio.abc.Instrument):
    """Counts while it is entered. `steps` has the largest; `units` is the sum of all."""

    def __init__(self, clock: MockClock | None = None) -> None:
        self._clock = clock
        self._uncounted_units = 0
        self._held_at_units: int | None = counted_code.units()
        """Where the counter stood when somebody began whose work does not count; None if it does."""
        self._step_began_units = 0
        self.steps_count = 0
        self.largest: list[Step] = []
        """Of each label the largest step, the largest first."""
        self._by_label: dict[str, Step] = {}
        self._label = "nothing"
        self._undo: list[Callable[[], None]] = []
        self._ours = trio.lowlevel.current_task()

    # ------------------------------------------------------------------ on and off

    def __enter__(self) -> Self:
        self._uncounted_units = counted_code.units()
        self._held_at_units = self._uncounted_units
        self._begin_step("the test")
        if gc.isenabled():
            gc.disable()
            self._undo.append(gc.enable)
        self._hold_clock()
        self._mark_steps()
        for owner, name in _ELSEWHERE:
            self._replace(owner, name, self._not_counted(getattr(owner, name)))
        for name, weigh in _WEIGHED.items():
            self._put_in_place(name, weigh)
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self._hold()
        trio.lowlevel.remove_instrument(self)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._end_step()
        assert self._by_label, "nothing was counted: what is tested has to be done by another task, or in `called`"
        self.largest = sorted(self._by_label.values(), key=lambda step: -step.units)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        real = vars(owner)[name]
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, real))

    def _hold_clock(self) -> None:
        clock = self._clock or trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock), "counted in virtual time only"
        real_clock, rate = clock._real_clock, clock.rate
        began = real_clock()
        clock._real_clock = lambda: began + self.seconds
        clock.rate = 1.0

        def undo() -> None:
            clock.rate = rate
            clock._real_clock = real_clock

        self._undo.append(undo)

    @property
    def units(self) -> int:
        """All that was counted."""
        now = counted_code.units() if self._held_at_units is None else self._held_at_units
        return now - self._uncounted_units

    @property
    def seconds(self) -> float:
        """What the clock of a slow machine would show."""
        return self.units / UNITS_PER_MS / 1000

    def weigh(self, units: int) -> None:
        """Something of this weight was done by C."""
        if self._held_at_units is None:
            self._uncounted_units -= units

    # ------------------------------------------------------------------ whose work does not count

    def _hold(self) -> None:
        if self._held_at_units is None:
            self._held_at_units = counted_code.units()

    def _go_on(self) -> None:
        if self._held_at_units is not None:
            self._uncounted_units += counted_code.units() - self._held_at_units
            self._held_at_units = None

    def _not_counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A test stands for a thread."""

        def call(*arguments: Any, **more: Any) -> Any:
            if self._held_at_units is not None:
                return real(*arguments, **more)
            self._hold()
            try:
                return real(*arguments, **more)
            finally:
                self._go_on()

        return call

    # ------------------------------------------------------------------ steps

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begin_step(f"the task {task.name.rpartition('.')[2]}")
        if task is self._ours:  # clients are played by the task that counts
            self._hold()
        else:
            self._go_on()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begin_step("the loop")
        self._go_on()

    def _mark_steps(self) -> None:
        """Have the dispatcher's loop begin a step with each context that it takes, and each callback."""
        take = ReadyLists.take

        def taken(ready: ReadyLists) -> DispatchContext | None:
            context = take(ready)
            self._begin_step(f"the dispatch of {getattr(context, 'label', '?')}" if context else "the loop")
            return context

        class Callbacks(deque[Callable[[], None]]):
            def popleft(callbacks) -> Callable[[], None]:
                self._begin_step("the end of a turn")
                return super().popleft()

        self._replace(ReadyLists, "take", taken)
        self._replace(dispatcher_core, "deque", Callbacks)

    def measures_with(self, *parts: Any) -> None:
        """These have a clock of their own that measures work: the counted one, for as long as it counts."""
        for part in parts:
            real = part._clock
            part._clock = self._clock_for(real)
            self._undo.append(lambda part=part, real=real: setattr(part, "_clock", real))

    def _clock_for(self, real: Callable[[], float]) -> Callable[[], float]:
        """Return the clock of a part. It goes on from the real one, which it is again at the end: a slice of work may
        be under way at both moments, and keeps the clock that it began with.
        """
        began_seconds = real() - self.seconds
        return lambda: began_seconds + self.seconds if self._undo else real()

    @contextmanager
    def called(self, label: str) -> Iterator[None]:
        """Count what the test itself calls in here, as one step."""
        self._begin_step(label)
        self._go_on()
        try:
            yield
        finally:
            self._hold()
            self._begin_step("the test")

    def _begin_step(self, label: str) -> None:
        self._end_step()
        self._label = label

    def _end_step(self) -> None:
        now = self.units
        units = now - self._step_began_units
        self._step_began_units = now
        by_function = counted_code.where() if counted_code.BY_FUNCTION else None
        if units:
            self.steps_count += 1
            kept = self._by_label.get(self._label)
            if kept is None or kept.units < units:
                where = tuple(by_function.most_common()) if by_function else ()
                self._by_label[self._label] = Step(units, self._label, where)

    # ------------------------------------------------------------------ what C does at once

    def _put_in_place(self, name: str, weigh: Callable[[Counting, Any], Any]) -> None:
        if "." in name:
            module_name, _, attribute = name.rpartition(".")
            module = sys.modules[module_name]
            real = getattr(module, attribute)
            setattr(module, attribute, weigh(self, real))
            self._undo.append(lambda: setattr(module, attribute, real))
            return
        counted = weigh(self, getattr(builtins, name))
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and file.startswith(_FOLDERS) and name not in vars(module):
                vars(module)[name] = counted
                self._undo.append(lambda module=module: vars(module).pop(name, None))


def _by_result(share: int) -> Callable[[Counting, Any], Any]:
    """Weighs what a function returns: one unit for so many elements."""

    def weighed(counting: Counting, real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            result = real(*arguments, **more)
            if len(result) >= share:
                counting.weigh(len(result) // share)
            return result

        return call

    return weighed


def _by_argument(share: int) -> Callable[[Counting, Any], Any]:
    """Weighs the first argument, if it has a length."""

    def weighed(counting: Counting, real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if arguments and hasattr(arguments[0], "__len__") and len(arguments[0]) >= share:
                counting.weigh(len(arguments[0]) // share)
            return real(*arguments, **more)

        return call

    return weighed


def _type(share: int) -> Callable[[Counting, Any], Any]:
    """Weighs what a type makes. It stays one to `isinstance`."""

    def weighed(counting: Counting, real: Any) -> Any:
        class Meta(type):
            def __call__(cls, *arguments: Any, **more: Any) -> Any:
                result = real(*arguments, **more)
                if len(result) >= share:
                    counting.weigh(len(result) // share)
                return result

            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, real)

            def __subclasscheck__(cls, subclass: type) -> bool:
                return issubclass(subclass, real)

            def __or__(cls, other: Any) -> Any:
                return real | other

            def __ror__(cls, other: Any) -> Any:
                return other | real

            def __getattr__(cls, name: str) -> Any:
                return getattr(real, name)

            def __getitem__(cls, item: Any) -> Any:
                return real[item]

        return Meta(real.__name__, (), {})

    return weighed


_WEIGHED: Final[dict[str, Callable[[Counting, Any], Any]]] = {
    "sorted": _by_result(1),
    "sum": _by_argument(2),
    "min": _by_argument(2),
    "max": _by_argument(2),
    "any": _by_argument(2),
    "all": _by_argument(2),
    "list": _type(8),
    "tuple": _type(8),
    "set": _type(2),
    "frozenset": _type(2),
    "dict": _type(2),
    "bytes": _type(4096),
    "zlib_ng.zlib_ng.crc32": _by_argument(2048),
    "json.dumps": _by_result(16),
    "json.loads": _by_argument(16),
}
