"""Asks the broker that should run: is it there, does the login work, what does it say, and how long does it take?"""

from __future__ import annotations

import time

from sluiceway.cli.client import ClientError, Refused, Target
from sluiceway.doctor.facts import Running
from sluiceway.top.feed import BrokerLink


def ask_broker(target: Target, *, asked_for: bool) -> Running:
    """One connection and one request over STOMP. `asked_for`: the user named the address. Blocks for some seconds at
    most.
    """
    began_seconds = time.monotonic()
    try:
        with BrokerLink(target) as link:
            connected_seconds = time.monotonic()
            report = link.ask()
            answered_seconds = time.monotonic()
    except Refused as error:
        return Running(url=target.url, asked_for=asked_for, fault=str(error).partition("\n")[0], refused=True)
    except ClientError as error:
        return Running(url=target.url, asked_for=asked_for, fault=str(error).partition("\n")[0].partition(";")[0])
    return Running(
        url=target.url,
        asked_for=asked_for,
        report=report,
        connect_seconds=connected_seconds - began_seconds,
        answer_seconds=answered_seconds - connected_seconds,
    )
