"""Connections go by the name that their client gave them."""

from __future__ import annotations

import pytest
import trio

from sluiceway.protocols.stomp.login import SHOWN_MAX, connection_name
from tests.scenarios.stage import Stage


@pytest.mark.parametrize(
    ("who", "name"),
    [
        ("", "10.0.0.7:1"),
        ("web-3", "web-3 (10.0.0.7:1)"),
        ("<b>\x1b[2J\nbéla", "<b>?[2J?béla (10.0.0.7:1)"),
        ("x" * 1000, f"{'x' * SHOWN_MAX} (10.0.0.7:1)"),
    ],
)
def test_a_name_is_what_people_call_it_and_where_it_is(who: str, name: str) -> None:
    assert connection_name("10.0.0.7:1", who) == name


async def test_the_chain_of_who_waits_for_whom_has_the_names_of_clients() -> None:
    async with Stage({"/queue/orders": {"count_max": 2}}) as stage:
        slow = await stage.connect(name="a", **{"client-id": "billing"})
        await slow.subscribe("/queue/orders", id="1", ack="client", **{"prefetch-count": "1"})
        shop = await stage.connect(name="b", **{"client-id": "web-3"})
        await shop.send_all("/queue/orders", range(9))
        await stage.settled_down()
        await trio.sleep(2)
        words = [bottleneck["words"] for bottleneck in stage.broker.report()["bottlenecks"]]
        assert any("subscription 1 of billing (" in said for said in words), words
        chains = str(stage.broker.report())
        assert "connection web-3 (" in chains
        await slow.next_messages(1)
