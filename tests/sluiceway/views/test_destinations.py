"""What a destination is said to hold is what its queues count."""

from __future__ import annotations

import attrs

from sluiceway.queues.names import parse
from sluiceway.queues.statistics import QueueStatistics
from sluiceway.views.destinations import destination_figures, destination_report, figure
from tests.queues.rig import World
from tests.queues.test_registry import make_registry

OF_THE_WHOLE = {"producers_count", "subscriptions_count", "unheard_count"}


def test_figures_are_those_that_queues_count() -> None:
    registry = make_registry(World())
    for name in ("/queue/a", "/topic/a"):
        destination = registry.get(parse(name))
        for priority, added_count in ((4, 3), (7, 2)):
            destination.queue.partition(priority).added_count = added_count
        figures = destination_figures(destination)
        totals = [queue.statistics() for queue in destination.queues]
        for one in figures.keys() - OF_THE_WHOLE:
            assert figures[one] == sum(getattr(total, one) for total in totals), one
        assert figures["added_count"] == 5
        assert destination_report(destination)["idle_seconds"] == min(total.idle_seconds for total in totals)


def test_no_figure_of_queues_is_left_out() -> None:
    figures = destination_figures(make_registry(World()).get(parse("/topic/a")))
    counted = {field.name for field in attrs.fields(QueueStatistics)} - {"idle_seconds"}
    assert figures.keys() == counted | OF_THE_WHOLE


def test_a_figure_alone_is_that_of_the_whole_view() -> None:
    destination = make_registry(World()).get(parse("/queue/a"))
    destination.producers_count = 2
    figures = destination_figures(destination)
    assert {name: figure(name, destination) for name in figures} == figures
