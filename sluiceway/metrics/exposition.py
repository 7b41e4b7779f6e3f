"""Samples as text, written by prometheus_client.

Its own types say what is written, its own functions write it, a hundred samples at a time: a page of a thousand
destinations takes a tenth of a second, which is too long to do nothing else. So each family is exposed in parts, and
the repeated help and type of later parts are cut off.

prometheus_client is loaded with the first page, for it takes some megabytes, which an unscraped broker saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from sluiceway.flow.graph import Steps
from sluiceway.metrics.catalogue import FAMILIES, Family

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PART_COUNT: Final = 25
"""Samples that are written in one step: half a millisecond (OpenMetrics takes twice the time)."""

END: Final = b"# EOF\n"
"""End of a page in OpenMetrics."""

Sample = tuple[str, Sequence[str], float]
"""Suffix of the name, values of the labels, value."""


class Gathered:
    """Samples by family."""

    __slots__ = ("samples",)

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """One sample of a counter or gauge. None: there is nothing to say. Raises KeyError for a family that is not in
        the catalogue, ValueError for labels that it does not have.
        """
        family = FAMILIES[name]
        if len(labels) != len(family.labels):
            raise ValueError(f"{name} has the labels {family.labels}, got {labels}")
        if value is not None and not math.isnan(value):
            suffix = {"counter": "_total", "info": "_info"}.get(family.kind, "")
            self.samples.setdefault(name, []).append((suffix, labels, value))

    def put_all(self, names: Iterable[str], values: Iterable[float | None], *labels: str) -> None:
        """Put one sample of each family, all with the same labels."""
        for name, value in zip(names, values, strict=True):
            self.put(name, value, *labels)

    def put_summary(self, name: str, count: int, total: float) -> None:
        """Put a summary: a count and a sum."""
        assert FAMILIES[name].kind == "summary", name
        self.samples[name] = [("_count", (), count), ("_sum", (), total)]

    def put_histogram(self, name: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> None:
        """Put a histogram: counts by bucket, each for itself; the last one is for values above all bounds."""
        assert FAMILIES[name].kind == "histogram", name
        samples: list[Sample] = []
        seen_count = 0
        for bound, count in zip([*bounds, math.inf], counts, strict=True):
            seen_count += count
            samples.append(("_bucket", ("+Inf" if math.isinf(bound) else repr(bound),), seen_count))
        samples += [("_count", (), seen_count), ("_sum", (), total)]
        self.samples[name] = samples


class _Parts:
    """A collector that returns the samples put there last."""

    def __init__(self) -> None:
        self.current: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        return self.current


class Exposition:
    """Writes pages. Has a registry of its own: other metrics of this process do not appear."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry

        self._registry = CollectorRegistry(auto_describe=False)
        self._parts = _Parts()
        self._registry.register(self._parts)

    def write(self, gathered: Gathered, *, openmetrics: bool) -> Steps[bytes]:
        """Return the page, in steps; empties `gathered`. Families in the order of the catalogue, the empty ones left
        out.
        """
        from prometheus_client import exposition
        from prometheus_client.openmetrics import exposition as openmetrics_exposition

        encode: Callable[[Any], bytes]
        encode = openmetrics_exposition.generate_latest if openmetrics else exposition.generate_latest
        text: list[bytes] = []
        for name, family in FAMILIES.items():
            samples = gathered.samples.pop(name, ())  # freed family by family: all of them at the end take 10 ms
            for start in range(0, len(samples), PART_COUNT):
                yield
                self._parts.current = [_metric(family, samples[start : start + PART_COUNT])]
                part = encode(self._registry)
                if openmetrics:
                    part = part.removesuffix(END)
                text.append(part if start == 0 else _without_head(part))
        self._parts.current = []
        yield
        if openmetrics:
            text.append(END)
        return b"".join(text)


def _metric(family: Family, samples: Sequence[Sample]) -> Metric:
    from prometheus_client.metrics_core import Metric

    metric = Metric(family.base_name, family.help, family.kind, family.unit)
    for suffix, values, value in samples:
        names: Iterator[str] | tuple[str, ...] = (*family.labels, "le") if suffix == "_bucket" else family.labels
        labels = {label: _sound(text) for label, text in zip(names, values, strict=True)}
        metric.add_sample(f"{family.base_name}{suffix}", labels, value)
    return metric


def _sound(text: str) -> str:
    """Text that can be written as UTF-8, whatever a client made of a name; the rest of escaping is the encoder's."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _without_head(part: bytes) -> bytes:
    """Samples never begin with a hash."""
    while part.startswith(b"#"):
        part = part[part.index(b"\n") + 1 :]
    return part
