"""Report for docs/performance.md and the terminal of brokers that were loaded in turns (`perf.turns`)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from perf.reports.figures import show
from perf.reports.results import Results
from perf.turns import PREFIX, share_of

_METHOD = """\
`python -m perf turns`: brokers that are loaded one after the other for a few seconds, again and again, all started anew
several times. What is shown is the median of the ratios within a round, with the quartiles, and the CPU time of the
broker per message. So differences show that are smaller than the noise of the machine. Rows may come from different
calls and machines: ratios can be compared, microseconds only within a row.

- *sluiceway-tls*, *sluiceway-websocket*: the same over TLS (1.3, AES-GCM), and over WebSocket with a message for each
  STOMP frame that is sent, as browsers' clients send them. Beside plain TCP.
- *sluiceway-watched*: with its admin port open, trails on, and a client that polls each second the data of an open
  console (its first page: overview and map) and the metrics. Beside *sluiceway-bare*: no admin port, no trails.\
"""


def without_turns(results: Results) -> Results:
    """Return the results without those measured in turns."""
    others = tuple(one for one in results.measurements if not one.scenario.startswith(PREFIX))
    peers = {one.peer for one in others}
    versions = {
        name: text for name, text in results.versions.items() if name in peers or not name.startswith("sluiceway-")
    }
    return evolve(results, measurements=others, versions=versions)


def turns_section(results: Results) -> Iterator[str]:
    """The section of the page; nothing if nothing was measured in turns."""
    rows = list(_rows(results))
    if not rows:
        return
    yield ""
    yield "## Carried by TLS or WebSocket, and watched"
    yield ""
    yield _METHOD
    yield ""
    yield "| scenario | broker | beside | keeps | rounds | broker cpu | beside it |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def turns_lines(results: Results) -> Iterator[str]:
    """The same for a terminal."""
    for scenario, peer, base, keeps, rounds, cpu, base_cpu in _rows(results):
        yield f"{scenario}: {peer} keeps {keeps} of {base} in {rounds} rounds; cpu {cpu} instead of {base_cpu}"
    for one in results.measurements:
        for fault in one.faults:
            yield f"{one.scenario}: faulty: {fault}"


def _rows(results: Results) -> Iterator[tuple[str, ...]]:
    for name in results.scenarios():
        if not name.startswith(PREFIX):
            continue
        base, scenario = name.removeprefix(PREFIX).split(":", 1)
        for peer in dict.fromkeys(one.peer for one in results.measurements if one.scenario == name):
            share = share_of(results, name, peer, base)
            if peer != base and share is not None:
                cpu_us, base_cpu_us = (results.medians(name, each)["broker_cpu_us"] for each in (peer, base))
                yield (
                    scenario,
                    peer,
                    base,
                    f"{share.median:.2f} ({share.low:.2f} to {share.high:.2f})",
                    str(share.rounds),
                    show("broker_cpu_us", cpu_us),
                    show("broker_cpu_us", base_cpu_us),
                )
