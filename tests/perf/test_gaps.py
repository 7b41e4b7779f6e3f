"""The probe that measures how long others wait: every act of it is played against a real broker."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

from perf.cli import main
from perf.peers import peer_named
from perf.probes.gaps import Gap, Scene, lines, measure
from perf.started import started


@pytest.mark.timeout(120)
def test_every_act_is_played_and_measured() -> None:
    """With a hundred of what is many."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    told: list[str] = []
    with started(peer_named("sluiceway"), None, f'[admin]\naddress = "{http}"\n') as broker:
        gaps = measure(Scene(broker.endpoint, f"http://{http}"), 100, told.append, settled_seconds=0.02)
    assert [gap.act for gap in gaps] == told
    assert told[0] == "nothing"
    assert len(set(told)) == len(told) > 15
    assert all(gap.seconds > 0 and gap.idle_seconds > 0 for gap in gaps)


def test_the_table_compares_each_gap_with_the_noise() -> None:
    assert list(lines([Gap("nothing", 0.002, 0.002), Gap("a COMMIT", 0.03, 0.002)])) == [
        "                gap       idle  times",
        "nothing      2.0 ms     2.0 ms    1.0",
        "a COMMIT    30.0 ms     2.0 ms   15.0",
    ]


def test_help_says_how_to_read_it() -> None:
    told = CliRunner().invoke(main, ["gaps", "--help"]).output
    assert all(word in told for word in ("--count", "--peer", "noise", "docs/gaps.md"))
