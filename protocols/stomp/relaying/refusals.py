"""ERRORs that several parts of a relay make."""

from __future__ import annotations

from ..errors import ProtocolError
from ..head import SendHead


def no_owner(what: str) -> ProtocolError:
    """Return the refusal of what no hub can do now."""
    return ProtocolError("no-owner", f"no hub that can be reached has {what} now", "Send it again in a while.")


def lost_transaction(name: str) -> ProtocolError:
    """Return the refusal of a transaction whose hub is gone."""
    return ProtocolError(
        "transaction-lost",
        f"transaction {name!r} is lost: the hub that had it is gone, or its destinations have moved",
        "Nothing of it was done. Begin it again.",
    )


def in_doubt(what: str) -> ProtocolError:
    """Return the end of a connection that can't be told whether something was done."""
    return ProtocolError(
        "in-doubt",
        f"{what} when the hub that has its destination was lost",
        "It may have been done, or not. Connect again, and send it again if it may come twice.",
    )


def lost_place(destination: str) -> ProtocolError:
    """Return the end of a connection with a subscription that can't be made again where it was."""
    return ProtocolError(
        "shard-away",
        f"the reader of {destination} has lost its place: the hub that has it can't be reached",
        "Connect again, and read on from the place that you have kept. A browser begins again.",
    )


def not_retained(head: SendHead) -> ProtocolError:
    """Return the refusal of a SEND that is to be retained."""
    return ProtocolError(
        "not-supported",
        f"retain:{head.retain} to {head.destination}: a cluster has no retained messages in this version",
        "Send it without retain, or use a log, /log/NAME, from which later consumers read the latest record.",
    )
