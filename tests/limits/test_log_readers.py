"""Readers and groups of one log: ten thousand of them, and one that has the most out, or refused; on a counted clock,
without a broker around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import pytest

from sluiceway.protocols.stomp.header_codec import rewrite
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.dead_letters import DeadLetterRouter
from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.page_cache import PageCache
from sluiceway.queues.logs.ports import PLACE_RANGES_MAX, GroupState
from sluiceway.queues.logs.refused import REFUSED_MAX
from sluiceway.queues.message import Envelope
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.steps import Steps
from tests.limits.counting import STEP_UNITS_MAX, Counting
from tests.limits.law import CROWD_COUNT
from tests.queues.logs.rig import LogReader, LogWorld, sends
from tests.queues.rig import Producer, make_policy

CREDIT = 40_000
"""What one consumer has out, of the million that it may."""
LATER = {"redelivery_delay_ms": 60_000, "redelivery_delay_max_ms": 60_000}
DEAD = {"redeliveries_max": 0, "dead_letter": "/queue/dead"}


class CrowdWorld(LogWorld):
    """Long work is done in steps, as in a broker."""

    def __init__(self, **policy: object) -> None:
        super().__init__(cache_bytes=64 << 20, **policy)
        self.dead: ConsumedQueue | None = None
        self.dead_count_max: int | None = None
        router = DeadLetterRouter(
            self,
            ["/queue/dead"],
            rewrite=rewrite,
            now_ms=self.environment.now_ms,
        )
        self.environment = self.log.environment = attrs.evolve(
            self.environment, in_steps=Steps(self.core).do, dead_letters=router
        )

    def durable_names(self, durable_id: int) -> tuple[str, str | None]:
        raise AssertionError("no topics here")

    def queue_for_dead_letters(self, name: str, head: Envelope) -> ConsumedQueue:
        """The only one."""
        if self.dead is None:
            self.dead = shared_queue(
                name, make_policy(count_max=self.dead_count_max), self.environment, priority=head.priority
            )
        return self.dead

    def filled(self, count: int) -> None:
        """So many records, by hundreds."""
        self.fill(*[100] * (count // 100))


@contextmanager
def law(world: CrowdWorld, what: str) -> Iterator[None]:
    """No step of this is too long. The dispatcher's clock goes on with the work."""
    core = world.core
    real = core._clock
    with Counting() as counting:
        core._clock = lambda: world.now_seconds + counting.seconds
        with counting.called(what):
            yield
    core._clock = real
    world.now_seconds += counting.seconds
    largest = counting.largest[0]
    assert largest.units <= STEP_UNITS_MAX, f"{what} holds the loop too long.\n{largest}"


# ---------------------------------------------------------------------- many readers


async def test_a_group_with_a_crowd_of_consumers() -> None:
    """Each takes one; then there is nobody with credit."""
    world = CrowdWorld()
    group = world.group()
    readers = [world.reader(1) for _ in range(CROWD_COUNT)]
    for reader in readers:
        group.subscribe(reader)
    world.run()
    with law(world, "records for a group of many consumers"):
        world.fill(*[100] * 50)
        world.run()
    assert sum(len(reader.held) for reader in readers) == 5_000
    with law(world, "more than they have credit for"):
        world.fill(*[100] * 60)
        world.run()
    assert all(len(reader.held) == 1 for reader in readers)
    with law(world, "ACKs of a group of many consumers"):
        for reader in readers[:1_000]:
            reader.settle()
            world.run()
    assert group.position == 11_000
    with law(world, "what people are told of it"):
        assert group.unsettled_count == CROWD_COUNT


def let_a_crowd_wait(world: CrowdWorld, what: str) -> None:
    """For the disk, one record each; then all of them go on."""
    world.disk.held = True
    readers = []
    for _ in range(CROWD_COUNT):
        reader = world.reader(1)
        world.outlet().subscribe(reader)
        readers.append(reader)
    world.run()
    assert not readers[0].held
    with law(world, what):
        world.disk.work()
        world.run()
    assert all(reader.held for reader in readers)


async def test_a_crowd_waits_for_a_long_batch() -> None:
    """A thread checks it; then all of them go on."""
    world = CrowdWorld()
    world.fill(10_000)
    let_a_crowd_wait(world, "a long batch is checked")


async def test_a_crowd_waits_for_what_is_not_in_the_page_cache() -> None:
    world = CrowdWorld()
    world.filled(1_000)
    world.log.page_cache = PageCache(world.records)  # as after a start
    let_a_crowd_wait(world, "a stretch was read ahead")


async def test_many_gaps() -> None:
    """Every other record was lost, and thousands of others wait to be tried again."""
    world = CrowdWorld(**LATER)
    group = world.group()
    reader = world.join(group, None)
    world.filled(2 * REFUSED_MAX)
    reader.requeue(reader.held[:REFUSED_MAX:2])
    reader.settle()
    world.records.append_batches([encode([b"x"])])
    for _ in range(2_000):
        world.records.lose(1)
        world.records.append_batches([encode([b"x"])])
    with law(world, "gaps beside what was refused"):
        group.context.request_dispatch()
        world.run()
    assert len(reader.gaps) == 2_000


# ---------------------------------------------------------------------- the most of one group


def refused_group(world: CrowdWorld, count: int = REFUSED_MAX) -> tuple[Group, LogReader]:
    """A group that refused so many records, every other one."""
    world.filled(2 * count)
    group = world.group()
    reader = world.join(group, None)
    some = reader.held[::2]
    for start in range(0, count, 500):
        reader.requeue(some[start : start + 500])
    world.run()
    assert group.refused is not None
    return group, reader


MOVES: dict[str, Callable[[CrowdWorld, Group], object]] = {
    "seek": lambda _world, group: group.seek(5),
    "place": lambda _world, group: group.state(),
    "delete": lambda _world, group: group.delete(),
    "retention": lambda world, _group: (world.records.remove_to(world.records.next_index), world.advance(3600)),
    "their time": lambda world, _group: world.advance(3600),
}


@pytest.mark.parametrize("policy", [LATER, DEAD], ids=["later", "given up"])
@pytest.mark.parametrize("count", [REFUSED_MAX, CREDIT // 2], ids=["as many as wait", "all that was out"])
@pytest.mark.parametrize("kind", MOVES)
async def test_a_group_that_has_refused_thousands(kind: str, count: int, policy: dict[str, object]) -> None:
    world = CrowdWorld(**policy)
    world.dead_count_max = 10
    group, reader = refused_group(world, count)
    with law(world, f"{kind} of a group that has refused {count}"):
        MOVES[kind](world, group)
        world.run()
    assert reader.held


async def test_the_place_of_a_group_with_all_of_its_credit_out_once_more() -> None:
    """Each second it is written which of them failed how often."""
    world = CrowdWorld()
    world.filled(CREDIT)
    group = world.group()
    reader = world.join(group, None)
    reader.requeue(reader.held[::2])
    reader.requeue(attempted=False)
    world.run()
    assert len(reader.held) == CREDIT
    with law(world, "the place of a group"):
        state = group.state()
    assert state.failures == tuple((n, n + 1, 1) for n in range(0, 2 * PLACE_RANGES_MAX, 2))


async def test_a_group_is_taken_up_that_had_given_thousands_up() -> None:
    """Nobody is connected when it is restored, but when what it had given up goes on its way."""
    failures = tuple((n, n + 1, 5) for n in range(0, 2 * PLACE_RANGES_MAX, 2))
    settled = tuple((n, n + 1) for n in range(2 * PLACE_RANGES_MAX + 1, 4 * PLACE_RANGES_MAX, 2))
    world = CrowdWorld(**DEAD)
    world.filled(6 * PLACE_RANGES_MAX)
    group = world.group(GroupState(0, settled, 5 * PLACE_RANGES_MAX, failures))
    with law(world, "what it had given up"):
        world.run()
    assert world.dead is not None
    assert world.dead.elements.live_count == PLACE_RANGES_MAX
    assert group.state().failures == ()


async def test_a_long_batch_of_dead_letters_does_not_wait_for_a_timer() -> None:
    """A thread checks it, and they go on when it has."""
    world = CrowdWorld(**DEAD)
    world.fill(10_000)
    group = world.group()
    reader = world.join(group, None, batch_bytes=1024, codecs=tuple(Codec))
    world.reading._batches.clear()
    [run] = reader.held_runs
    world.disk.held = True
    with law(world, "a long batch of dead letters"):
        reader.return_run(run)
        world.run()
    assert world.dead is None
    check, checked = world.disk.jobs.popleft()
    result = check()
    with law(world, "dead letters of a batch that was checked"):
        checked(result)
        world.run()
    assert world.dead is not None
    assert world.dead.elements.live_count == 10_000
    assert group.front == 10_000


async def test_a_log_with_thousands_of_sends_that_wait_for_the_disk() -> None:
    world = CrowdWorld()
    world.disk.held = True
    log: Log = world.log
    producer = Producer(world, log)  # type: ignore[arg-type]
    for _ in range(5 * CROWD_COUNT):
        assert log.offer(sends([b"x"]), 50, producer.source)
    world.run()
    assert log.pending_count == 5 * CROWD_COUNT
    while world.disk.jobs:
        append, appended = world.disk.jobs.popleft()
        result = append()
        with law(world, "some are written"):
            appended(result)
            world.run()
    assert log.pending_count == 0
