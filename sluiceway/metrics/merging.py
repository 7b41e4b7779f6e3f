"""Pages of several hubs as one page: every sample gets the label `hub`, every family is told once.

The pages are those that each hub would show by itself, so their text is passed on as it is, line by line;
only the label is put in, and samples of one family stand together, as the format wants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sluiceway.flow.graph import Steps
from sluiceway.metrics.catalogue import FAMILIES
from sluiceway.metrics.exposition import END

LINES_PER_STEP: Final = 200
UP: Final = "sluiceway_hub_up"
_SAMPLE: Final = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")


def merged_in_steps(pages: Mapping[str, bytes], missing: Mapping[str, str], *, openmetrics: bool) -> Steps[bytes]:
    """Return the page of all hubs. `pages`: by hub, in the order in which they are told; `missing`: hubs that have not
    answered, which are told by `sluiceway_hub_up`.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for hub, page in pages.items():
        label = b'hub="' + hub.encode() + b'"'
        family = b""
        knows_head = False
        for number, line in enumerate(page.split(b"\n")):
            if number % LINES_PER_STEP == 0:
                yield
            if line.startswith(b"# "):
                name = line.split(b" ", 3)[2] if line.count(b" ") > 1 else b""
                if name and name != family:
                    family, knows_head = name, name in heads
                    samples.setdefault(family, [])
                if name and not knows_head:
                    heads.setdefault(family, []).append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, label))
    text: list[bytes] = _up(pages, missing)
    for family, lines in samples.items():
        yield
        text += heads.get(family, [])
        text += lines
    yield
    return b"\n".join(text) + b"\n" + (END if openmetrics else b"")


def _labelled(line: bytes, label: bytes) -> bytes:
    """Put a label in front of those of a sample."""
    found = _SAMPLE.match(line)
    assert found is not None, "a sample begins with its name"
    name, rest = line[: found.end()], line[found.end() :]
    if rest.startswith(b"{}"):
        return name + b"{" + label + rest[1:]
    return name + b"{" + label + b"," + rest[1:] if rest.startswith(b"{") else name + b"{" + label + b"}" + rest


def _up(pages: Mapping[str, bytes], missing: Mapping[str, str]) -> list[bytes]:
    family = FAMILIES[UP]
    lines = [f"# HELP {UP} {family.help}", f"# TYPE {UP} {family.kind}"]
    lines += [f'{UP}{{hub="{hub}"}} {float(hub in pages)}' for hub in sorted({*pages, *missing})]
    return [line.encode() for line in lines]
