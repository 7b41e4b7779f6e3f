"""SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

from sluiceway.compliance.client import shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, check
from sluiceway.compliance.wire import Headers


def _error(kit: Kit, command: str, headers: Headers) -> None:
    """Send a wrong frame, for which there must be an ERROR, and from 1.1 on the end."""
    client = kit.connect()
    client.write(command, headers)
    if kit.is_later:
        client.error()
    else:
        client.refusal()


@check("subscribe/destination-required", "SUBSCRIBE", {"1.0": SHOULD})
def destination_required(kit: Kit) -> None:
    """Answer a SUBSCRIBE without destination with ERROR, and from 1.1 on close."""
    _error(kit, "SUBSCRIBE", [("id", "1"), ("receipt", "r")])


@check("subscribe/id-required", "SUBSCRIBE id Header", MUST, LATER)
def id_required(kit: Kit) -> None:
    """Answer a SUBSCRIBE without id with ERROR, and close."""
    _error(kit, "SUBSCRIBE", [("destination", kit.queue()), ("receipt", "r")])


@check("subscribe/without-id", "SUBSCRIBE", MUST, ("1.0",))
def without_id(kit: Kit) -> None:
    """Take a SUBSCRIBE without id."""
    where = kit.queue()
    client = kit.connect()
    client.receipted("SUBSCRIBE", kit.of(where)[1:])
    client.write("SEND", kit.to(where), b"a")
    client.message(b"a")


@check("subscribe/duplicate-id", "SUBSCRIBE id Header", SHOULD, LATER)
def duplicate_id(kit: Kit) -> None:
    """Refuse a second subscription with the id of another one of the connection."""
    client = kit.connect()
    kit.subscribe(client, kit.queue("a"))
    client.write("SUBSCRIBE", [*kit.of(kit.queue("b")), ("receipt", "again")])
    client.refusal()


@check("subscribe/same-id-elsewhere", "SUBSCRIBE id Header", MUST)
def same_id_elsewhere(kit: Kit) -> None:
    """Keep subscriptions of the same id on two connections apart."""
    first, second = kit.queue("a"), kit.queue("b")
    one, other = kit.subscribed(first), kit.subscribed(second)
    kit.produce(first, b"for one")
    kit.produce(second, b"for the other")
    one.message(b"for one")
    other.message(b"for the other")


@check("subscribe/two-subscriptions", "SUBSCRIBE id Header", MUST)
def two_subscriptions(kit: Kit) -> None:
    """Tell the messages of two subscriptions of one connection apart."""
    client = kit.connect()
    kit.subscribe(client, kit.queue("a"), subscription="one")
    kit.subscribe(client, kit.queue("b"), subscription="two")
    client.write("SEND", kit.to(kit.queue("b")), b"b")
    client.write("SEND", kit.to(kit.queue("a")), b"a")
    found = {message.body: message.get("subscription") for message in client.messages(2)}
    if found != {b"a": "one", b"b": "two"}:
        raise Failed("a for the subscription one, b for two", f"came {found}")


@check("subscribe/unknown-ack", "SUBSCRIBE ack Header", CHOICE)
def unknown_ack(kit: Kit) -> None:
    """Answer a SUBSCRIBE with an unknown ack."""
    client = kit.connect()
    client.write("SUBSCRIBE", [*kit.of(kit.queue(), "1", "sometimes"), ("receipt", "r")])
    found = client.reaction()
    kit.saw("accepts it" if found == "RECEIPT" else found)


@check("subscribe/ack-defaults-to-auto", "SUBSCRIBE ack Header", MUST)
def ack_default(kit: Kit) -> None:
    """Take ack for auto if it is missing: what was sent to the consumer needs no ACK."""
    where = kit.queue()
    with kit.subscribed(where) as client:
        client.write("SEND", kit.to(where), b"a")
        client.message(b"a")
        client.receipted("SEND", kit.to(where), b"b")
        client.message(b"b")
        client.receipted("DISCONNECT")
    kit.left(where)


@check("subscribe/selector", "SUBSCRIBE", CHOICE)
def selector(kit: Kit) -> None:
    """Filter by the header selector."""
    where = kit.topic()
    client = kit.connect()
    client.write("SUBSCRIBE", [("id", "1"), ("destination", where), ("selector", "colour = 'red'"), ("receipt", "r")])
    found = client.reaction()
    if found != "RECEIPT":
        kit.saw(found)
        return
    client.receipted("SEND", [("destination", where), ("colour", "blue")], b"blue")
    client.receipted("SEND", [("destination", where), ("colour", "red")], b"red")
    kit.saw("filters" if client.message().body == b"red" else "does not filter")


@check("unsubscribe/stops", "UNSUBSCRIBE", MUST)
def stops(kit: Kit) -> None:
    """Send no MESSAGE of a subscription that has ended."""
    where = kit.queue()
    client = kit.subscribed(where)
    client.write("SEND", kit.to(where), b"before")
    client.message(b"before")
    client.receipted("UNSUBSCRIBE", [("id", "1")])
    client.receipted("SEND", kit.to(where), b"after")
    client.quiet(kit.settings.quiet_seconds, "no MESSAGE behind the RECEIPT of UNSUBSCRIBE")
    kit.left(where, b"after")


@check("unsubscribe/by-destination", "UNSUBSCRIBE", MUST, ("1.0",))
def by_destination(kit: Kit) -> None:
    """End a subscription that is named by its destination."""
    where = kit.queue()
    client = kit.connect()
    client.receipted("SUBSCRIBE", kit.of(where)[1:])
    client.receipted("UNSUBSCRIBE", [("destination", where)])
    client.receipted("SEND", kit.to(where), b"after")
    client.quiet(kit.settings.quiet_seconds, "no MESSAGE behind the RECEIPT of UNSUBSCRIBE")


@check("unsubscribe/id-required", "UNSUBSCRIBE", SHOULD, LATER)
def unsubscribe_id_required(kit: Kit) -> None:
    """Answer an UNSUBSCRIBE without id with ERROR."""
    client = kit.connect()
    kit.subscribe(client, kit.queue())
    client.write("UNSUBSCRIBE", [("receipt", "without")])
    client.refusal()


@check("unsubscribe/unknown", "UNSUBSCRIBE", CHOICE)
def unsubscribe_unknown(kit: Kit) -> None:
    """Answer an UNSUBSCRIBE of an unknown subscription."""
    client = kit.connect()
    client.write("UNSUBSCRIBE", [("id", "never-subscribed"), ("receipt", "r")])
    found = client.reaction()
    kit.saw("ignores it" if found == "RECEIPT" else found)


@check("unsubscribe/id-again", "UNSUBSCRIBE", MUST)
def id_again(kit: Kit) -> None:
    """Allow the id of an ended subscription to be used again."""
    first, second = kit.queue("a"), kit.queue("b")
    client = kit.subscribed(first)
    client.receipted("UNSUBSCRIBE", [("id", "1")])
    kit.subscribe(client, second)
    client.write("SEND", kit.to(second), b"again")
    message = client.message(b"again")
    if kit.is_later and message.get("subscription") != "1":
        raise Failed("subscription:1", f"came {shown(message)}")


@check("unsubscribe/unacknowledged", "UNSUBSCRIBE", CHOICE)
def unacknowledged(kit: Kit) -> None:
    """Give unacknowledged messages of an ended subscription to other consumers, at once or with the end."""
    where = kit.queue()
    kit.produce(where, b"a")
    client = kit.subscribed(where, "client")
    client.message(b"a")
    client.receipted("UNSUBSCRIBE", [("id", "1")])
    if kit.remaining(where) == [b"a"]:
        kit.saw("at once")
        return
    client.close()
    kit.saw("when the connection ends" if kit.remaining(where, [b"a"]) == [b"a"] else "never")
