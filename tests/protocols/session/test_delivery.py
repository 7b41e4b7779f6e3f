"""What a subscription keeps of what it was sent, until the kernel has taken it and the client has acknowledged it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import cast

import pytest

from sluiceway.protocols.outbound import Outbound
from sluiceway.protocols.stomp.delivery import SessionTotals, StompSubscription
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.hub import Hub
from sluiceway.protocols.stomp.subscribe_headers import ACK_AUTO, ACK_CLIENT, SubscriptionSpec
from tests.protocols.session.deliveries import slice_of
from tests.queues.rig import World


@pytest.mark.parametrize("ack", [ACK_AUTO, ACK_CLIENT])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_no_message_is_kept_for_a_peer_that_does_not_read(version: Version, ack: str) -> None:
    """A topic drops them by its policy, and charges for them no more. So all that may be left of them are the bytes in
    the outbound buffer, which are charged there, and neither the slice nor what was rendered of it for others.
    """
    world = World()
    clock = world.environment.clock
    outbound = Outbound(
        "peer",
        capacity_bytes=1000,
        manager=world.manager,
        clock=clock,
        write=lambda pieces: 0,
        request_flush=lambda: None,
    )
    consumer = StompSubscription(
        cast(
            Hub,
            SimpleNamespace(
                manager=world.manager,
                clock=clock,
                message_token=b"token",
                ack_prefix=b"",
                scheduling=world.core,
                bodies=None,
            ),
        ),
        outbound,
        SubscriptionSpec(
            key=1,
            subscription_id="s",
            label="s of peer",
            destination="/topic/a",
            ack=ack,
            version=version,
            prefetch_count=10,
            prefetch_bytes=1000,
        ),
        SessionTotals(),
    )
    subscription = world.topic().subscribe(consumer)
    part = slice_of(range(4))
    message = part.messages[2]
    before = sys.getrefcount(part), sys.getrefcount(message), sys.getrefcount(message.wire)
    consumer.deliver(subscription, part, dropped_count=0)
    assert not outbound.flush()
    assert (sys.getrefcount(part), sys.getrefcount(message), sys.getrefcount(message.wire)) == before
