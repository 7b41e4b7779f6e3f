"""What a destination is said to hold is what its queues count."""

from __future__ import annotations

import attrs

from sluiceway.queues.names import parse
from sluiceway.queues.statistics import QueueStatistics
from sluiceway.views.destinations import figure, view_destination
from tests.queues.rig import World
from tests.queues.test_registry import make_registry

OF_THE_WHOLE = {"producers_count", "subscriptions_count", "unheard_count"}


def test_figures_are_those_that_queues_count() -> None:
    registry = make_registry(World())
    for name in ("/queue/a", "/topic/a"):
        destination = registry.get(parse(name))
        for priority, added_count in ((4, 3), (7, 2)):
            destination.queue.partition(priority).added_count = added_count
        view = view_destination(destination)
        totals = [queue.statistics() for queue in destination.queues]
        for one in view.figures.keys() - OF_THE_WHOLE:
            assert view.figures[one] == sum(getattr(total, one) for total in totals), one
        assert view.figures["added_count"] == 5
        assert view.idle_seconds == min(total.idle_seconds for total in totals)


def test_no_figure_of_queues_is_left_out() -> None:
    view = view_destination(make_registry(World()).get(parse("/topic/a")))
    counted = {field.name for field in attrs.fields(QueueStatistics)} - {"idle_seconds"}
    assert view.figures.keys() == counted | OF_THE_WHOLE


def test_a_figure_alone_is_that_of_the_whole_view() -> None:
    destination = make_registry(World()).get(parse("/queue/a"))
    destination.producers_count = 2
    view = view_destination(destination)
    assert {name: figure(name, destination) for name in view.figures} == view.figures
