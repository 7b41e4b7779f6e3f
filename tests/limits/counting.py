"""A clock that counts work: how much is done between two returns to the loop, whatever the machine does meanwhile.

*Unit.* One event of the tracer inside the product's packages: a line, a call, a return. Calls of functions of other
packages count one each. What C does with many things in one call is weighed by their number: `sorted`, `list`, `set`,
`dict`, `json.dumps` and their like (`_WEIGHED`). A pass through a loop or a comprehension is an event, so nothing that
Python code does n times costs less than n.

Functions without loops are sampled: a call that is not traced counts as much as the traced ones did on average.

*Budget.* UNITS_PER_MS units count as a millisecond of a slow machine, so STEP_UNITS_MAX is what 5 ms are. Calibrated
with eleven of the cases, played with the counter and with `time.thread_time` in its place: 11,000 to 25,000 units went
into a millisecond of one core of a two-core virtual machine (CPython 3.11; 4,000 where objects are made by the thousand
and the garbage collector looks at them). `perf gaps` shows real gaps.

*Clock.* While it counts, trio's virtual clock and the clocks that measure work (of the admin views, of rationed
answers) advance with the work. So time slices end where they would end on a slow machine, always at the same event.

*Garbage collector.* Off while it counts: when it comes, and whose garbage it finds, depends on the tests before. What a
full look costs is measured by `perf gaps`.

*Threads.* What one does in earnest is done by the loop here, and not counted: jobs of logs and of large bodies, and
what the store writes.

*Step.* What can't be interrupted: one dispatch (the dispatcher looks at the clock behind each), the callbacks at the
end of a turn together, or what one task does otherwise between two checkpoints.
"""

from __future__ import annotations

import builtins
import dis
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final, Self

import attrs
import trio
from trio.testing import MockClock

from sluiceway.dispatcher.core import DispatcherCore
from sluiceway.store.io_threads import Job
from sluiceway.store.memory import MemoryEngine
from tests.architecture.sources import PACKAGES, ROOT

UNITS_PER_MS: Final = 8_000
STEP_UNITS_MAX: Final = 5 * UNITS_PER_MS

_TRACED_FIRST: Final = 32
_TRACED_EACH: Final = 16

_FOLDERS: Final = tuple(f"{ROOT / name}/" for name in PACKAGES)
_BETWEEN_DISPATCHES: Final = DispatcherCore._run_contexts.__code__
_ELSEWHERE: Final = frozenset({Job.run.__code__, MemoryEngine.write.__code__})
_TURN_END: Final = DispatcherCore._run_turn_end.__code__


@attrs.frozen
class Step:
    """One piece of work that nothing could interrupt."""

    units: int
    label: str
    """Whose it was: a dispatch context, or a task."""
    by_function: tuple[tuple[str, int], ...]
    """Where the work was done, the most first."""

    def __str__(self) -> str:
        where = "\n".join(f"    {units:>9,}  {name}" for name, units in self.by_function[:12])
        return f"{self.units:,} units ({self.units / UNITS_PER_MS:.1f} ms) in one step of {self.label}:\n{where}"


@attrs.define(eq=False)
class _Sample:
    """What a call of a function without loops costs: its first calls and then one in so many are traced, the others
    count as much as these did on average. Of such a function a call can't cost more than it has lines.
    """

    calls_count: int = 0
    traced_count: int = 0
    events_count: int = 0
    mean_units: int = 1

    def is_due(self) -> bool:
        """Return whether this call is traced."""
        self.calls_count += 1
        if self.calls_count > _TRACED_FIRST and self.calls_count % _TRACED_EACH:
            return False
        if self.traced_count:
            self.mean_units = 1 + round(self.events_count / self.traced_count)
        self.traced_count += 1
        return True


class Counting(trio.abc.Instrument):
    """Counts while it is entered. `steps` has the largest; `units` is the sum of all."""

    def __init__(self, clock: MockClock | None = None) -> None:
        self._clock = clock
        self._units_before = 0
        self.steps_count = 0
        self.largest: list[Step] = []
        """Of each label the largest step, the largest first."""
        self._by_label: dict[str, Step] = {}
        self._cells: dict[CodeType, list[int]] = {}
        self._touched: dict[CodeType, list[int]] = {}
        self._samples: dict[CodeType, _Sample] = {}
        self._tracers: dict[CodeType, Callable[[FrameType, str, Any], Any] | None] = {}
        self._step_units = [0]  # one cell that tracers hold: an attribute would cost half as much again
        self._label = "nothing"
        self._is_elsewhere = False
        self._undo: list[Callable[[], None]] = []
        self._ours = trio.lowlevel.current_task()

    # ------------------------------------------------------------------ on and off

    def __enter__(self) -> Self:
        self._begin_step("the test")
        if gc.isenabled():
            gc.disable()
            self._undo.append(gc.enable)
        self._hold_clock()
        for name, weigh in _WEIGHED.items():
            self._put_in_place(name, weigh)
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(None)
        trio.lowlevel.remove_instrument(self)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._end_step()
        self.largest = sorted(self._by_label.values(), key=lambda step: -step.units)

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
        return self._units_before + self._step_units[0]

    @property
    def seconds(self) -> float:
        """What the clock of a slow machine would show."""
        return self.units / UNITS_PER_MS / 1000

    # ------------------------------------------------------------------ steps

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begin_step(f"the task {task.name.rpartition('.')[2]}")
        sys.settrace(None if task is self._ours else self._entered)  # clients are played by the task that counts

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begin_step("the loop")
        sys.settrace(self._entered)

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
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(None)
            self._begin_step("the test")

    def _begin_step(self, label: str) -> None:
        self._end_step()
        self._label = label

    def _end_step(self) -> None:
        units = self._step_units[0]
        if units:
            self._step_units[0] = 0
            self._units_before += units
            self.steps_count += 1
            kept = self._by_label.get(self._label)
            if kept is None or kept.units < units:
                touched = list(self._touched.items())  # finalizers are traced, too, and come at any time
                where = Counter({_name(code): cell[0] for code, cell in touched})
                self._by_label[self._label] = Step(units, self._label, tuple(where.most_common()))
        for cell in self._touched.values():
            cell[0] = 0
        self._touched.clear()

    # ------------------------------------------------------------------ events

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if self._is_elsewhere:
            return None
        code = frame.f_code
        if code in _ELSEWHERE:
            self._is_elsewhere = True
            return self._until_back
        if code in self._tracers:
            tracer = self._tracers[code]
        else:
            tracer = self._tracers[code] = self._tracer_of(code)
        caller = frame.f_back
        if caller is not None:
            if caller.f_code is _BETWEEN_DISPATCHES and code.co_name.startswith(("_dispatch", "dispatch")):
                self._begin_step(_dispatched(caller))
            elif code is _TURN_END:
                self._begin_step("the end of a turn")
        self._step_units[0] += 1
        if tracer is None:
            return None
        cell = self._cells[code]
        self._touched[code] = cell
        sample = self._samples.get(code)
        if sample is not None and not sample.is_due():
            self._step_units[0] += sample.mean_units - 1
            cell[0] += sample.mean_units
            return None
        cell[0] += 1
        return tracer

    def _until_back(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "return":
            self._is_elsewhere = False
        return self._until_back

    def _tracer_of(self, code: CodeType) -> Callable[[FrameType, str, Any], Any] | None:
        if not code.co_filename.startswith(_FOLDERS):
            return None
        cell = self._cells[code] = [0]
        step_units = self._step_units
        if not _has_loops(code):
            sample = self._samples[code] = _Sample()

            def trace_sampled(_frame: FrameType, _event: str, _argument: object) -> None:
                cell[0] += 1
                step_units[0] += 1
                sample.events_count += 1

            return trace_sampled

        def trace(_frame: FrameType, _event: str, _argument: object) -> None:  # None: the frame keeps its tracer
            cell[0] += 1
            step_units[0] += 1

        return trace

    def weigh(self, units: int) -> None:
        """Something of this weight was done by C."""
        if self._is_elsewhere or sys.gettrace() is None:  # a test stands for a thread: nothing is counted
            return
        self._step_units[0] += units
        code = sys._getframe(2).f_code
        if code in self._cells:
            cell = self._touched[code] = self._cells[code]
            cell[0] += units

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


def _has_loops(code: CodeType) -> bool:
    """Return whether a call may do one line many times, or is resumed (then its calls are pieces of any length)."""
    resumed = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return bool(code.co_flags & resumed) or any("BACKWARD" in each.opname for each in dis.get_instructions(code))


def _name(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(str(ROOT) + '/')}:{code.co_firstlineno} {code.co_qualname}"


def _dispatched(caller: FrameType) -> str:
    context = caller.f_locals.get("context")
    label = str(getattr(context, "label", "?"))
    return f"the dispatch of {label}"


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
