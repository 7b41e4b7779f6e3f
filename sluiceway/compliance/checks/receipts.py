"""RECEIPT: for which frames, with what, and what it promises."""

from __future__ import annotations

from sluiceway.compliance.client import Client, shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, check

SECTION = "Header receipt"


def _consumer(kit: Kit) -> tuple[Client, list[tuple[str, str]]]:
    """Return a consumer that holds an unacknowledged message, and the headers that name it."""
    where = kit.queue()
    client = kit.subscribed(where, "client")
    client.write("SEND", kit.to(where), b"a")
    return client, kit.ack_headers(client.message())


@check("receipt/send", SECTION, MUST)
def send(kit: Kit) -> None:
    """Confirm a SEND."""
    kit.connect().receipted("SEND", kit.to(kit.queue()), b"a")


@check("receipt/subscribe", SECTION, MUST)
def subscribe(kit: Kit) -> None:
    """Confirm a SUBSCRIBE."""
    kit.subscribed(kit.queue())


@check("receipt/unsubscribe", SECTION, MUST)
def unsubscribe(kit: Kit) -> None:
    """Confirm an UNSUBSCRIBE."""
    kit.subscribed(kit.queue()).receipted("UNSUBSCRIBE", [("id", "1")])


@check("receipt/ack", SECTION, MUST)
def ack(kit: Kit) -> None:
    """Confirm an ACK."""
    client, named = _consumer(kit)
    client.receipted("ACK", named)


@check("receipt/nack", SECTION, MUST, LATER)
def nack(kit: Kit) -> None:
    """Confirm a NACK."""
    client, named = _consumer(kit)
    client.receipted("NACK", named)


@check("receipt/begin", SECTION, MUST)
def begin(kit: Kit) -> None:
    """Confirm a BEGIN."""
    kit.connect().receipted("BEGIN", [("transaction", "t")])


@check("receipt/commit", SECTION, MUST)
def commit(kit: Kit) -> None:
    """Confirm a COMMIT."""
    client = kit.connect()
    client.write("BEGIN", [("transaction", "t")])
    client.receipted("COMMIT", [("transaction", "t")])


@check("receipt/abort", SECTION, MUST)
def abort(kit: Kit) -> None:
    """Confirm an ABORT."""
    client = kit.connect()
    client.write("BEGIN", [("transaction", "t")])
    client.receipted("ABORT", [("transaction", "t")])


@check("receipt/disconnect", SECTION, MUST)
def disconnect(kit: Kit) -> None:
    """Confirm a DISCONNECT."""
    kit.connect().receipted("DISCONNECT")


@check("receipt/id", "RECEIPT", MUST)
def identifier(kit: Kit) -> None:
    """Return the value of receipt as receipt-id, whatever it is."""
    client = kit.connect()
    for receipt in ("0", "a b/c=d;e", "x" * 500):
        client.write("SEND", kit.to(kit.queue(), ("receipt", receipt)), b"a")
        client.receipt(receipt)


@check("receipt/without-body", "RECEIPT", MUST)
def without_body(kit: Kit) -> None:
    """Write a RECEIPT without a body."""
    came = kit.connect().receipted("SEND", kit.to(kit.queue()), b"a")
    if came.body:
        raise Failed("a RECEIPT without a body", f"came {shown(came)}")


@check("receipt/only-if-asked", SECTION, MUST)
def only_if_asked(kit: Kit) -> None:
    """Confirm no frame without receipt."""
    client = kit.connect()
    client.write("SEND", kit.to(kit.queue()), b"a")
    client.receipted("SEND", kit.to(kit.queue()), b"b")
    client.quiet(kit.settings.quiet_seconds, "one RECEIPT")


@check("receipt/each", SECTION, MUST)
def each(kit: Kit) -> None:
    """Confirm each of many frames that were sent at once."""
    client = kit.connect()
    where = kit.queue()
    client.send(
        b"".join(client.bytes_of("SEND", kit.to(where, ("receipt", str(number))), b"a") for number in range(40))
    )
    found = [client.expect("RECEIPT").get("receipt-id") for _ in range(40)]
    if sorted(found, key=str) != sorted(map(str, range(40))):
        raise Failed("40 RECEIPTs, one for each", f"came {found}")
    kit.saw("in their order" if found == [str(number) for number in range(40)] else "in another order")


@check("receipt/same-twice", SECTION, SHOULD)
def same_twice(kit: Kit) -> None:
    """Confirm two frames with the same receipt twice."""
    client = kit.connect()
    for _ in range(2):
        client.write("SEND", kit.to(kit.queue(), ("receipt", "same")), b"a")
    for _ in range(2):
        client.receipt("same")


@check("receipt/processed", "RECEIPT", MUST, LATER)
def processed(kit: Kit) -> None:
    """Confirm a SEND when the server has processed it: the message does not need the connection any more."""
    where = kit.queue()
    with kit.connect() as client:
        client.receipted("SEND", kit.to(where), b"a")
    kit.left(where, b"a")


@check("receipt/covers-earlier", "RECEIPT", MUST, LATER)
def covers_earlier(kit: Kit) -> None:
    """Confirm with a RECEIPT that all frames before it were received."""
    where = kit.queue()
    with kit.connect() as client:
        client.write("SEND", kit.to(where), b"1")
        client.write("SEND", kit.to(where), b"2")
        client.receipted("SEND", kit.to(where), b"3")
    kit.left(where, b"1", b"2", b"3")


@check("receipt/of-connect", SECTION, CHOICE)
def of_connect(kit: Kit) -> None:
    """Answer a receipt of CONNECT, which may not have one."""
    client = kit.connect([("receipt", "connect")])
    found = client.reaction(kit.settings.quiet_seconds)
    kit.saw("ignores it" if found == "nothing" else found)


@check("receipt/in-error", "ERROR", SHOULD, LATER)
def in_error(kit: Kit) -> None:
    """Name in an ERROR the receipt of the frame that caused it."""
    client = kit.connect()
    client.write("SEND", [("receipt", "cause")], b"without destination")
    came = client.refusal()
    if came.get("receipt-id") != "cause":
        raise Failed("receipt-id:cause in ERROR", f"came {shown(came)}")
