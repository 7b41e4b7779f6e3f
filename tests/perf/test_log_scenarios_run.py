"""Every scenario of logs with a handful of records against a real broker process, so that none of them can rot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from perf.logs.appending import values_of
from perf.logs.batches import WrongBatchError, batch_of, checked
from perf.logs.runner import LogRun
from perf.logs.scenarios import LOG_CATALOGUE, LogScenario, choose_logs, is_log_scenario
from perf.peers import peer_named
from perf.reports.figures import FIGURES
from perf.reports.tables import figures_of, headline
from perf.runner import Effort
from perf.scenarios import BY_NAME
from perf.started import Started, started
from sluiceway.queues.logs.batches import encode, stamped

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def broker_for() -> Iterator[Callable[[LogScenario], Started]]:
    """The broker for a scenario, which those with the same settings share."""
    with ExitStack() as stack:
        running: dict[str, Started] = {}

        def choose(scenario: LogScenario) -> Started:
            if scenario.settings not in running:
                one = started(peer_named("sluiceway"), None, scenario.settings)
                running[scenario.settings] = stack.enter_context(one)
            return running[scenario.settings]

        yield choose


@pytest.mark.parametrize("scenario", LOG_CATALOGUE, ids=lambda scenario: scenario.name)
def test_scenario_keeps_every_record_of_a_handful_once(
    scenario: LogScenario, broker_for: Callable[[LogScenario], Started]
) -> None:
    """No fault means: indexes follow on each other, sampled batches are right by checksum, nothing is missing."""
    measured = LogRun(scenario, broker_for(scenario), 1, Effort().tiny()).measure()
    assert measured.faults == ()
    assert headline(scenario) in measured.figures
    assert all(figure in FIGURES for figure in measured.figures)


def test_every_column_and_target_is_a_figure() -> None:
    """A table can't ask for what nobody measures."""
    for scenario in LOG_CATALOGUE:
        assert all(figure in FIGURES for figure in figures_of(scenario))
        assert all(target.figure in FIGURES for target in scenario.targets)


def test_names_are_those_of_logs_only() -> None:
    """`logs` stands for all that are Sluiceway's own; no name means two scenarios."""
    assert not {one.name for one in LOG_CATALOGUE} & set(BY_NAME)
    assert all(is_log_scenario(one.name) for one in LOG_CATALOGUE)
    assert [one.name for one in choose_logs(["logs"])] == [one.name for one in LOG_CATALOGUE if not one.stream]
    assert len(choose_logs(["logs", "log-read-1k-batches"])) == len(choose_logs(["logs"]))


def test_batches_of_the_load_are_those_of_the_broker() -> None:
    """Written twice, from one description: the same bytes, and neither finds fault with the other's."""
    values = values_of(33, 7)
    assert batch_of(values) == encode(values)
    run = b"".join(stamped(batch_of(values), index, 5) + batch_of(values)[32:] for index in (40, 47))
    assert list(checked(memoryview(run))) == [(40, 7), (47, 7)]
    for place in (3, 10, 30, 90):
        torn = bytearray(run)
        torn[place] ^= 1
        with pytest.raises(WrongBatchError):
            list(checked(memoryview(torn)))
