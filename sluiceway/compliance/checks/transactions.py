"""BEGIN, COMMIT and ABORT."""

from __future__ import annotations

from sluiceway.compliance.client import Client, Late, shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, check

IN_T = ("transaction", "t")


def _begun(kit: Kit) -> Client:
    client = kit.connect()
    client.receipted("BEGIN", [IN_T])
    return client


@check("transaction/commit", "COMMIT", MUST)
def commit(kit: Kit) -> None:
    """Deliver what was sent in a transaction when it is committed, and not before."""
    where = kit.queue()
    reader = kit.subscribed(where)
    client = _begun(kit)
    client.write("SEND", kit.to(where, IN_T), b"1")
    client.write("SEND", kit.to(where, IN_T), b"2")
    reader.quiet(kit.settings.quiet_seconds, "no MESSAGE before COMMIT")
    client.receipted("COMMIT", [IN_T])
    found = sorted(message.body for message in reader.messages(2))
    if found != [b"1", b"2"]:
        raise Failed("both messages", f"came {found}")


@check("transaction/order", "COMMIT", SHOULD)
def order(kit: Kit) -> None:
    """Keep the order of messages in a transaction."""
    where = kit.queue()
    client = _begun(kit)
    client.send(b"".join(client.bytes_of("SEND", kit.to(where, IN_T), b"%d" % number) for number in range(20)))
    client.receipted("COMMIT", [IN_T])
    kit.subscribe(client, where)
    found = [int(message.body) for message in client.messages(20)]
    if found != list(range(20)):
        raise Failed("20 messages in their order", f"came {found}")


@check("transaction/abort", "ABORT", MUST)
def abort(kit: Kit) -> None:
    """Deliver nothing of a transaction that was aborted."""
    where = kit.queue()
    client = _begun(kit)
    client.write("SEND", kit.to(where, IN_T), b"1")
    client.receipted("ABORT", [IN_T])
    client.receipted("SEND", kit.to(where), b"outside")
    kit.left(where, b"outside")


@check("transaction/others-pass", "BEGIN", MUST)
def others_pass(kit: Kit) -> None:
    """Deliver at once what the connection sends outside of its open transaction."""
    where = kit.queue()
    client = _begun(kit)
    client.write("SEND", kit.to(where, IN_T), b"inside")
    client.receipted("SEND", kit.to(where), b"outside")
    kit.left(where, b"outside")


@check("transaction/two", "BEGIN", MUST)
def two(kit: Kit) -> None:
    """Keep two transactions of a connection apart."""
    where = kit.queue()
    client = kit.connect()
    client.receipted("BEGIN", [("transaction", "one")])
    client.receipted("BEGIN", [("transaction", "two")])
    client.write("SEND", kit.to(where, ("transaction", "one")), b"one")
    client.write("SEND", kit.to(where, ("transaction", "two")), b"two")
    client.receipted("ABORT", [("transaction", "one")])
    client.receipted("COMMIT", [("transaction", "two")])
    kit.left(where, b"two")


@check("transaction/same-name-elsewhere", "BEGIN", MUST)
def same_name_elsewhere(kit: Kit) -> None:
    """Keep transactions of the same name on two connections apart."""
    where = kit.queue()
    one, other = _begun(kit), _begun(kit)
    one.write("SEND", kit.to(where, IN_T), b"one")
    other.write("SEND", kit.to(where, IN_T), b"other")
    other.receipted("ABORT", [IN_T])
    one.receipted("COMMIT", [IN_T])
    kit.left(where, b"one")


@check("transaction/name-again", "COMMIT", SHOULD)
def name_again(kit: Kit) -> None:
    """Allow the name of an ended transaction to be used again."""
    where = kit.queue()
    client = _begun(kit)
    client.receipted("COMMIT", [IN_T])
    client.receipted("BEGIN", [IN_T])
    client.write("SEND", kit.to(where, IN_T), b"again")
    client.receipted("COMMIT", [IN_T])
    kit.left(where, b"again")


@check("transaction/ack-committed", "ACK", MUST)
def ack_committed(kit: Kit) -> None:
    """Acknowledge with COMMIT what was acknowledged in the transaction."""
    where, client = _acknowledged_in_t(kit)
    client.receipted("COMMIT", [IN_T])
    client.close()
    kit.left(where)


@check("transaction/ack-aborted", "ACK", MUST)
def ack_aborted(kit: Kit) -> None:
    """Forget with ABORT what was acknowledged in the transaction."""
    where, client = _acknowledged_in_t(kit)
    client.receipted("ABORT", [IN_T])
    client.close()
    kit.left(where, b"1")


@check("transaction/ack-lost", "ACK", MUST)
def ack_lost(kit: Kit) -> None:
    """Forget with the end of the connection what was acknowledged in an open transaction."""
    where, client = _acknowledged_in_t(kit)
    client.close()
    kit.left(where, b"1")


def _acknowledged_in_t(kit: Kit) -> tuple[str, Client]:
    where = kit.queue()
    kit.produce(where, b"1")
    client = kit.subscribed(where, "client")
    message = client.message(b"1")
    client.receipted("BEGIN", [IN_T])
    client.write("ACK", [*kit.ack_headers(message), IN_T])
    client.receipted("SEND", kit.to(kit.queue("other")), b"behind the ACK")
    return where, client


@check("transaction/abort-at-disconnect", "BEGIN", {"1.0": SHOULD})
def abort_at_disconnect(kit: Kit) -> None:
    """Abort open transactions with DISCONNECT."""
    where = kit.queue()
    client = _begun(kit)
    client.write("SEND", kit.to(where, IN_T), b"inside")
    client.receipted("SEND", kit.to(where), b"outside")
    client.receipted("DISCONNECT")
    client.close()
    kit.left(where, b"outside")


@check("transaction/abort-at-close", "BEGIN", {"1.0": SHOULD})
def abort_at_close(kit: Kit) -> None:
    """Abort open transactions when the connection fails."""
    where = kit.queue()
    client = _begun(kit)
    client.write("SEND", kit.to(where, IN_T), b"inside")
    client.receipted("SEND", kit.to(where), b"outside")
    client.close()
    kit.left(where, b"outside")


def _refused(kit: Kit, command: str, *headers: tuple[str, str], begun: bool = False) -> None:
    client = _begun(kit) if begun else kit.connect()
    client.write(command, [*headers, ("receipt", "wrong")])
    client.refusal()


@check("transaction/begin-without-name", "BEGIN", SHOULD)
def begin_without_name(kit: Kit) -> None:
    """Answer a BEGIN without transaction with ERROR."""
    _refused(kit, "BEGIN")


@check("transaction/commit-without-name", "COMMIT", SHOULD)
def commit_without_name(kit: Kit) -> None:
    """Answer a COMMIT without transaction with ERROR."""
    _refused(kit, "COMMIT", begun=True)


@check("transaction/abort-without-name", "ABORT", SHOULD)
def abort_without_name(kit: Kit) -> None:
    """Answer an ABORT without transaction with ERROR."""
    _refused(kit, "ABORT", begun=True)


@check("transaction/begin-twice", "BEGIN", SHOULD)
def begin_twice(kit: Kit) -> None:
    """Answer a BEGIN of a transaction that is open with ERROR."""
    _refused(kit, "BEGIN", IN_T, begun=True)


@check("transaction/commit-unknown", "COMMIT", SHOULD)
def commit_unknown(kit: Kit) -> None:
    """Answer a COMMIT of an unknown transaction with ERROR."""
    _refused(kit, "COMMIT", ("transaction", "unknown"))


@check("transaction/abort-unknown", "ABORT", SHOULD)
def abort_unknown(kit: Kit) -> None:
    """Answer an ABORT of an unknown transaction with ERROR."""
    _refused(kit, "ABORT", ("transaction", "unknown"))


@check("transaction/send-unknown", "SEND", SHOULD)
def send_unknown(kit: Kit) -> None:
    """Answer a SEND in an unknown transaction with ERROR."""
    _refused(kit, "SEND", *kit.to(kit.queue()), ("transaction", "unknown"))


@check("transaction/receipt", "Header receipt", CHOICE)
def receipt(kit: Kit) -> None:
    """Confirm a SEND in a transaction at once, or with COMMIT."""
    client = _begun(kit)
    client.write("SEND", kit.to(kit.queue(), IN_T, ("receipt", "inside")), b"inside")
    try:
        came = client.frame("a RECEIPT", kit.settings.quiet_seconds)
    except Late:
        client.write("COMMIT", [IN_T])
        client.receipt("inside")
        kit.saw("with COMMIT")
        return
    if came.command != "RECEIPT":
        raise Failed("a RECEIPT", f"came {shown(came)}")
    kit.saw("at once")


@check("transaction/nack", "NACK", CHOICE, LATER)
def nack(kit: Kit) -> None:
    """Take a NACK in a transaction."""
    where = kit.queue()
    kit.produce(where, b"1")
    client = kit.subscribed(where, "client-individual")
    message = client.message(b"1")
    client.receipted("BEGIN", [IN_T])
    client.write("NACK", [*kit.ack_headers(message), IN_T, ("receipt", "r-nack")])
    found = client.reaction()
    kit.saw("takes it" if found == "RECEIPT" else found)
