"""ACK and NACK in all modes."""

from __future__ import annotations

from sluiceway.compliance.client import Client, Late
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, Unclear, check
from sluiceway.compliance.wire import Frame


def _three(kit: Kit, ack: str) -> tuple[str, Client, list[Frame]]:
    """Return a queue, a consumer of it that was sent 1, 2 and 3, and these."""
    where = kit.queue()
    kit.produce(where, b"1", b"2", b"3")
    client = kit.subscribed(where, ack)
    messages: list[Frame] = []
    try:
        while len(messages) < 3:
            messages.append(client.message())
    except Late:
        raise Unclear(
            f"the broker sends {len(messages)} of 3 messages before an ACK, and the check needs all"
        ) from None
    return where, client, messages


@check("ack/client", "SUBSCRIBE ack Header", MUST, ("1.0",))
def client_each(kit: Kit) -> None:
    """Consider messages consumed that were acknowledged by their message-id."""
    where, client, messages = _three(kit, "client")
    for message in messages:
        client.receipted("ACK", kit.ack_headers(message))
    client.close()
    kit.left(where)


@check("ack/client-last", "ACK", CHOICE, ("1.0",))
def client_last(kit: Kit) -> None:
    """Take the ACK of a message for one of the messages before it, too."""
    where, client, messages = _three(kit, "client")
    client.receipted("ACK", kit.ack_headers(messages[2]))
    client.close()
    left = kit.remaining(where)
    kit.saw("cumulative" if not left else "each message by itself")


@check("ack/client-cumulative", "SUBSCRIBE ack Header", MUST, LATER)
def client_cumulative(kit: Kit) -> None:
    """Acknowledge with ack client the named message and all that were sent before it."""
    where, client, messages = _three(kit, "client")
    client.receipted("ACK", kit.ack_headers(messages[2]))
    client.close()
    kit.left(where)


@check("ack/client-not-later", "SUBSCRIBE ack Header", MUST)
def client_not_later(kit: Kit) -> None:
    """Leave messages unacknowledged that were sent behind the named one."""
    where, client, messages = _three(kit, "client")
    client.receipted("ACK", kit.ack_headers(messages[0]))
    client.close()
    kit.left(where, b"2", b"3")


@check("ack/individual", "SUBSCRIBE ack Header", MUST, LATER)
def individual(kit: Kit) -> None:
    """Acknowledge with ack client-individual the named message alone."""
    where, client, messages = _three(kit, "client-individual")
    client.receipted("ACK", kit.ack_headers(messages[1]))
    client.close()
    kit.left(where, b"1", b"3")


@check("ack/individual-any-order", "SUBSCRIBE ack Header", MUST, LATER)
def individual_any_order(kit: Kit) -> None:
    """Take individual ACKs in any order."""
    where, client, messages = _three(kit, "client-individual")
    for at in (2, 0, 1):
        client.receipted("ACK", kit.ack_headers(messages[at]))
    client.close()
    kit.left(where)


@check("ack/unacknowledged-come-back", "SUBSCRIBE ack Header", SHOULD)
def unacknowledged_come_back(kit: Kit) -> None:
    """Take messages for unprocessed that were not acknowledged when the connection ended."""
    where, client, _messages = _three(kit, "client")
    client.close()
    kit.left(where, b"1", b"2", b"3")


@check("ack/of-one-subscription", "SUBSCRIBE ack Header", MUST, LATER)
def of_one_subscription(kit: Kit) -> None:
    """Acknowledge nothing of other subscriptions of the connection."""
    first, second = kit.queue("a"), kit.queue("b")
    kit.produce(first, b"a")
    kit.produce(second, b"b")
    client = kit.subscribed(first, "client", "one")
    client.message(b"a")
    kit.subscribe(client, second, "client", "two")
    client.receipted("ACK", kit.ack_headers(client.message(b"b"), "two"))
    client.close()
    kit.left(first, b"a")
    kit.left(second)


@check("ack/id-required", "ACK", SHOULD)
def id_required(kit: Kit) -> None:
    """Answer an ACK without the headers that name a message with ERROR."""
    _where, client, _messages = _three(kit, "client")
    client.write("ACK", [("receipt", "without")])
    client.refusal()


@check("ack/subscription-required", "ACK", SHOULD, ("1.1",))
def subscription_required(kit: Kit) -> None:
    """Answer an ACK without subscription with ERROR."""
    _where, client, messages = _three(kit, "client")
    client.write("ACK", [*kit.ack_headers(messages[0])[:1], ("receipt", "without")])
    client.refusal()


@check("ack/unknown", "ACK", CHOICE)
def unknown(kit: Kit) -> None:
    """Answer an ACK of a message that was never delivered."""
    _where, client, _messages = _three(kit, "client")
    named = [("id", "unknown-1")] if kit.version == "1.2" else [("message-id", "unknown-1"), ("subscription", "1")]
    client.write("ACK", [*named, ("receipt", "r")])
    found = client.reaction()
    kit.saw("ignores it" if found == "RECEIPT" else found)


@check("ack/twice", "ACK", CHOICE)
def twice(kit: Kit) -> None:
    """Answer a second ACK of the same message."""
    _where, client, messages = _three(kit, "client")
    client.receipted("ACK", kit.ack_headers(messages[0]))
    client.write("ACK", [*kit.ack_headers(messages[0]), ("receipt", "twice")])
    found = client.reaction()
    kit.saw("ignores it" if found == "RECEIPT" else found)


@check("ack/in-auto", "ACK", CHOICE)
def in_auto(kit: Kit) -> None:
    """Answer an ACK of a message that needs none."""
    where = kit.queue()
    client = kit.subscribed(where, "auto")
    client.write("SEND", kit.to(where), b"a")
    message = client.message()
    named = [("message-id", message.get("message-id") or ""), ("subscription", "1")]
    if kit.version == "1.2":
        named = [("id", message.get("ack") or message.get("message-id") or "")]
    client.write("ACK", [*named, ("receipt", "r")])
    found = client.reaction()
    kit.saw("ignores it" if found == "RECEIPT" else found)


@check("nack/taken", "NACK", MUST, LATER)
def nack_taken(kit: Kit) -> None:
    """Take a NACK, with the same headers as an ACK."""
    _where, client, messages = _three(kit, "client-individual")
    client.receipted("NACK", kit.ack_headers(messages[0]))


@check("nack/individual", "NACK", MUST, LATER)
def nack_individual(kit: Kit) -> None:
    """Apply a NACK with ack client-individual to the named message alone."""
    where, client, messages = _three(kit, "client-individual")
    client.receipted("NACK", kit.ack_headers(messages[1]))
    client.receipted("ACK", kit.ack_headers(messages[0]))
    client.close()
    left = kit.remaining(where, [b"3"])
    if b"1" in left or left.count(b"3") != 1:
        raise Failed("3, and perhaps 2, for the next consumer", f"came {left}")
    kit.saw("delivers the refused message again" if b"2" in left else "drops the refused message")


@check("nack/cumulative", "NACK", CHOICE, LATER)
def nack_cumulative(kit: Kit) -> None:
    """Apply a NACK with ack client to the messages before it, too."""
    where, client, messages = _three(kit, "client")
    client.receipted("NACK", kit.ack_headers(messages[1]))
    client.receipted("UNSUBSCRIBE", [("id", "1")])
    client.close()
    left = sorted(kit.remaining(where, [b"3"]))
    shown = ", ".join(body.decode() for body in left) or "none"
    kit.saw(f"of 1, 2, 3 and a NACK of 2, then are redelivered: {shown}")


@check("nack/unknown-command", "Once Connected", CHOICE, ("1.0",))
def nack_unknown_command(kit: Kit) -> None:
    """Answer a NACK, which 1.0 does not have."""
    _where, client, messages = _three(kit, "client")
    client.write("NACK", [*kit.ack_headers(messages[0]), ("receipt", "r")])
    found = client.reaction()
    kit.saw("takes it" if found in ("RECEIPT", "MESSAGE") else found)
