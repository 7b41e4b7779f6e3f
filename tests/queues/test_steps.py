"""Long work in steps: in order for one owner, in turns for many."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import pytest

from sluiceway.queues.steps import ACTIVE_COUNT, AT_ONCE_COUNT, AT_ONCE_SUM, STEP_COUNT, Steps, Waiting
from tests.queues.rig import World


class Work:
    """So many steps, noted as they are done."""

    def __init__(self, name: str, count: int, log: list[str]) -> None:
        self.name, self.count, self.log = name, count, log

    def __iter__(self) -> Iterator[None]:
        for _ in range(self.count):
            self.log.append(self.name)
            yield


def no_wake() -> None:
    """Nobody waits."""


def test_little_work_is_done_at_once() -> None:
    log: list[str] = []
    line = Steps(World().core).line(no_wake)
    line.add(iter(Work("a", AT_ONCE_COUNT - 1, log)))
    assert not line.busy
    assert len(log) == AT_ONCE_COUNT - 1


def test_more_work_goes_on_with_the_dispatcher_and_its_owner_is_told() -> None:
    world, log, told = World(), list[str](), list[str]()
    line = Steps(world.core).line(lambda: told.append("idle"))
    line.add(iter(Work("a", 10 * AT_ONCE_COUNT, log)))
    assert (line.busy, len(log), told) == (True, AT_ONCE_COUNT, [])
    world.run()
    assert (line.busy, len(log), told) == (False, 10 * AT_ONCE_COUNT, ["idle"])


def test_work_of_one_owner_is_done_in_order() -> None:
    world, log = World(), list[str]()
    line = Steps(world.core).line(no_wake)
    for name in "abc":
        line.add(iter(Work(name, 3 * AT_ONCE_COUNT, log)))
    world.run()
    assert "".join(log) == "".join(name * 3 * AT_ONCE_COUNT for name in "abc")


def test_owners_take_turns_and_a_dispatch_is_short() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.core)
    for name in "ab":
        steps.line(no_wake).add(iter(Work(name, 10 * AT_ONCE_COUNT, log)))
    del log[:]
    world.run()
    runs = [log[place : place + STEP_COUNT] for place in range(0, len(log), STEP_COUNT)]
    assert [len(set(run)) for run in runs] == [1] * len(runs)
    assert [run[0] for run in runs[:4]] == ["a", "b", "a", "b"]


def test_so_many_are_in_the_midst_of_something_and_the_others_follow() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.core)
    lines = [steps.line(no_wake) for _ in range(3 * ACTIVE_COUNT)]
    for number, line in enumerate(lines):
        line.add(iter(Work(str(number), 2 * AT_ONCE_COUNT, log)))
    assert len(steps._active) == ACTIVE_COUNT
    assert steps.lines_count == 3 * ACTIVE_COUNT
    world.run()
    assert steps.lines_count == 0
    assert len(log) == 3 * ACTIVE_COUNT * 2 * AT_ONCE_COUNT


def test_work_may_give_more_work() -> None:
    """A subscription that fails ends its connection, which is more work behind it."""
    world, log = World(), list[str]()
    line = Steps(world.core).line(no_wake)

    def first() -> Iterator[None]:
        yield
        line.add(iter(Work("b", 2, log)))
        log.append("a")
        yield

    line.add(first())
    assert log == ["a", "b", "b"]


@pytest.mark.parametrize("begun", [True, False])
def test_all_may_be_done_when_there_is_no_dispatcher_any_more(begun: bool) -> None:
    world, log = World(), list[str]()
    steps = Steps(world.core)
    line = steps.line(no_wake)
    line.add(iter(Work("a", 10 * AT_ONCE_COUNT, log)))
    if begun:
        world.core.run_turn()
    line.finish()
    assert not line.busy
    assert len(log) == 10 * AT_ONCE_COUNT
    assert steps.lines_count == 0
    world.run()


def test_work_that_raises_is_over() -> None:
    line = Steps(World().core).line(no_wake)

    def broken() -> Iterator[None]:
        yield
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        line.add(broken())
    assert not line.busy


def test_work_that_gave_more_and_raises_at_once_leaves_a_line_that_goes_on() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.core)
    line = steps.line(no_wake)

    def broken() -> Iterator[None]:
        line.add(iter(Work("given", 1, log)))
        yield
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        line.add(broken())
    line.add(iter(Work("later", 1, log)))
    world.run()
    assert log == ["given", "later"]
    assert (line.busy, steps.lines_count) == (False, 0)


def test_work_that_can_not_wait_for_what_it_wants_is_over() -> None:
    world, log = World(), list[str]()

    def begin(_go_on: Callable[[], None]) -> None:
        raise RuntimeError("no place in that line")

    line = Steps(world.core).line(no_wake)
    with pytest.raises(RuntimeError, match="no place"):
        line.add(iter([Waiting(begin)]))
    line.add(iter(Work("later", 1, log)))
    assert (log, line.busy) == (["later"], False)


def others_go_on_after_a_mistake(world: World, steps: Steps, log: list[str]) -> None:
    """One line will raise in the dispatcher: another one, that comes behind it, is done all the same."""
    steps.line(no_wake).add(iter(Work("b", 2 * AT_ONCE_SUM, log)))
    with pytest.raises(ValueError, match="a mistake"):
        world.run()
    world.run()
    assert log.count("b") == 2 * AT_ONCE_SUM
    assert steps.lines_count == 0


def test_an_owner_that_fails_to_be_told_stops_nobody() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.environment.scheduling)

    def broken() -> None:
        raise ValueError("a mistake")

    steps.line(broken).add(iter(Work("a", 2 * AT_ONCE_SUM, log)))
    others_go_on_after_a_mistake(world, steps, log)


def test_what_raises_at_the_end_keeps_nothing_else_from_being_done() -> None:
    log: list[str] = []
    steps = Steps(World().core)
    line = steps.line(no_wake)

    def broken() -> Iterator[None]:
        yield from Work("a", AT_ONCE_COUNT + 1, log)
        raise ValueError("a mistake")

    line.add(broken())
    line.add(iter(Work("b", 2, log)))
    with pytest.raises(ValueError, match="a mistake"):
        line.finish()
    assert (log.count("b"), line.busy, steps.lines_count) == (2, False, 0)


def test_work_that_raises_does_not_stop_that_of_others() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.environment.scheduling)

    def broken() -> Iterator[None]:
        yield from Work("a", AT_ONCE_SUM + 1, log)
        raise ValueError("a mistake")

    steps.line(no_wake).add(broken())
    others_go_on_after_a_mistake(world, steps, log)


def test_what_all_do_at_once_is_bounded_until_the_dispatcher_comes_by() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.core)
    for number in range(100):
        steps.line(no_wake).add(iter(Work(str(number), AT_ONCE_COUNT, log)))
    assert len(log) == AT_ONCE_SUM
    world.run()
    assert len(log) == 100 * AT_ONCE_COUNT
    steps.line(no_wake).add(iter(Work("later", AT_ONCE_COUNT - 1, log)))
    assert log.count("later") == AT_ONCE_COUNT - 1


def test_work_that_waits_goes_on_when_it_is_told_and_others_go_on_meanwhile() -> None:
    world, log, resume = World(), list[str](), list[Callable[[], None]]()
    steps = Steps(world.core)

    def work() -> Iterator[Waiting | None]:
        yield from Work("before", 2, log)
        yield Waiting(resume.append)
        yield from Work("after", 2, log)

    line = steps.line(lambda: log.append("idle"))
    line.add(work())
    line.add(iter(Work("behind", 1, log)))
    steps.line(no_wake).add(iter(Work("other", 2 * AT_ONCE_COUNT, log)))
    world.run()
    assert log == ["before", "before", *["other"] * 2 * AT_ONCE_COUNT]
    assert (line.busy, steps.lines_count) == (True, 0)
    resume[0]()
    world.run()
    assert log[-4:] == ["after", "after", "behind", "idle"]
    assert not line.busy


def test_what_is_told_at_once_does_not_wait() -> None:
    world, log = World(), list[str]()

    def work() -> Iterator[Waiting | None]:
        yield Waiting(lambda resume: resume())
        yield from Work("after", 2, log)

    line = Steps(world.core).line(no_wake)
    line.add(work())
    world.run()
    assert (log, line.busy) == (["after", "after"], False)


def test_what_is_finished_now_waits_for_nothing() -> None:
    world, log, resume = World(), list[str](), list[Callable[[], None]]()

    def work() -> Iterator[Waiting | None]:
        for _ in range(2):
            yield Waiting(resume.append)
            yield from Work("after", 2, log)

    line = Steps(world.core).line(no_wake)
    line.add(work())
    line.finish()
    assert (log, line.busy) == (["after"] * 4, False)
    resume[0]()
    world.run()
    assert len(log) == 4


def test_work_for_one_owner_is_done_in_order_and_nothing_is_kept_of_it() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.core)
    for name in "abc":
        steps.do("owner", iter(Work(name, 3 * AT_ONCE_COUNT, log)))
    world.run()
    assert "".join(log) == "".join(name * 3 * AT_ONCE_COUNT for name in "abc")
    steps.do("owner", iter(Work("d", 1, log)))
    assert (log[-1], steps.lines_count, steps._by_owner) == ("d", 0, {})


def test_what_one_owner_has_to_do_waits_neither_for_others_nor_for_crowds_of_connections() -> None:
    world, log = World(), list[str]()
    world.core._config = attrs.evolve(world.core._config, dispatches_per_turn_count=1)
    steps = Steps(world.core)
    for _ in range(3 * ACTIVE_COUNT):
        steps.line(no_wake).add(iter(Work("walk", 1_000, log)))
    steps.do("long", iter(Work("long", 10_000, log)))
    steps.do("short", iter(Work("short", 2 * STEP_COUNT, log)))
    for _ in range(8):
        world.core.run_turn()
    assert log.count("short") == 2 * STEP_COUNT
    assert log[-4 * STEP_COUNT :].count("walk") == 2 * STEP_COUNT, "connections have half of the turns"


def test_what_a_dispatch_gives_to_others_is_a_part_of_it() -> None:
    world, log = World(), list[str]()
    world.core._config = attrs.evolve(world.core._config, dispatches_per_turn_count=1)
    steps = Steps(world.core)

    def deletions() -> Iterator[None]:
        yield from Work("first", AT_ONCE_COUNT, log)
        for number in range(10):
            steps.do(number, iter(Work("given", AT_ONCE_COUNT, log)))
            yield

    steps.do("owner", deletions())
    del log[:]
    world.core.run_turn()
    assert len(log) <= 2 * STEP_COUNT
    world.run()
    assert log.count("given") == 10 * AT_ONCE_COUNT


def test_the_work_of_an_owner_stays_in_order_behind_work_that_raised() -> None:
    world, log = World(), list[str]()
    steps = Steps(world.environment.scheduling)

    def broken() -> Iterator[None]:
        yield from Work("a", AT_ONCE_COUNT + 1, log)
        raise ValueError("a mistake")

    steps.do("owner", broken())
    with pytest.raises(ValueError, match="a mistake"):
        world.run()
    steps.do("owner", iter(Work("b", 1, log)))
    steps.do("owner", iter(Work("c", 3 * AT_ONCE_COUNT, log)))
    world.core.run_turn()
    steps.do("owner", iter(Work("d", 1, log)))
    world.run()
    assert "".join(log).strip("a") == "b" + "c" * 3 * AT_ONCE_COUNT + "d"
    assert not steps._by_owner


def test_all_that_owners_have_to_do_may_be_done_now() -> None:
    log: list[str] = []
    steps = Steps(World().core)

    def broken() -> Iterator[None]:
        yield from Work("a", AT_ONCE_COUNT + 1, log)
        raise ValueError("a mistake")

    for number in range(4):
        steps.do(number, broken() if number % 2 else iter(Work("b", 2 * AT_ONCE_SUM, log)))
    with pytest.raises(ValueError, match="a mistake"):
        steps.finish()
    assert (log.count("b"), steps.lines_count, steps._by_owner) == (4 * AT_ONCE_SUM, 0, {})
