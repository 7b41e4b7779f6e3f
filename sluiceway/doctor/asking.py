"""Request to the broker that should run: whether it exists, accepts the login and answers, and how long that takes."""

from __future__ import annotations

import time

from sluiceway.client.address import Address
from sluiceway.client.errors import ClientError, NotSluicewayError, RefusedError
from sluiceway.doctor.facts import Running
from sluiceway.top.feed import link_to


def ask_broker(address: Address, *, asked_for: bool) -> Running:
    """Make one connection and one request over STOMP. `asked_for`: the user named the address. Blocks for some seconds
    at most.
    """
    began_seconds = time.monotonic()
    try:
        with link_to(address) as link:
            connected_seconds = time.monotonic()
            report = link.ask("stat")
            answered_seconds = time.monotonic()
    except NotSluicewayError as error:
        return Running(url=address.url, asked_for=asked_for, fault=error.short, other=True)
    except ClientError as error:
        is_refused = isinstance(error, RefusedError)
        return Running(url=address.url, asked_for=asked_for, fault=error.short, refused=is_refused)
    return Running(
        url=address.url,
        asked_for=asked_for,
        report=report,
        connect_seconds=connected_seconds - began_seconds,
        answer_seconds=answered_seconds - connected_seconds,
    )
