"""A page of metrics as a test reads it: made at once, parsed by Prometheus' own reader."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sluiceway.broker import Broker
from sluiceway.flow.graph import at_once
from sluiceway.metrics.catalogue import FAMILIES
from sluiceway.metrics.outside import SystemValues

NOWHERE = SystemValues({}, None)
"""What the system says, for tests in virtual time, which has no threads."""


class Page:
    """Samples by name and labels."""

    def __init__(self, text: str, *, openmetrics: bool = False) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.names: set[str] = set()
        for metric in parse_openmetrics(text) if openmetrics else parse_text(text):
            for sample in metric.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.samples, f"{key} is there twice"
                self.samples[key] = sample.value
                self.names.add(sample.name)

    def get(self, name: str, **labels: str) -> float | None:
        """One sample, by the name that queries use; None: it is not there."""
        assert any(name in family.sample_names for family in FAMILIES.values()), f"{name} is not in the catalogue"
        return self.samples.get((name, frozenset(labels.items())))

    def __call__(self, name: str, **labels: str) -> float:
        """One sample that is there: `page(name, destination="/queue/q")`."""
        found = self.get(name, **labels)
        assert found is not None, f"no {name} {labels} among {sorted(self.names)}"
        return found

    def sum(self, name: str) -> float:
        """Over all labels."""
        return sum(value for (found, _labels), value in self.samples.items() if found == name)


def text_of(broker: Broker, *, openmetrics: bool = False) -> str:
    """The page as it is sent."""
    return at_once(broker.metrics.page_in_steps(NOWHERE, openmetrics=openmetrics)).decode()


def scrape(broker: Broker) -> Page:
    """The page, read."""
    return Page(text_of(broker))
