"""Values of headers: UTF-8, escapes, spaces."""

from __future__ import annotations

from sluiceway.compliance.client import Closed, shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, check
from sluiceway.compliance.wire import frame

LETTERS = "zwölf Boxkämpfer Ж 漢 𝄞"


def _value(kit: Kit, name: str, value: str, wanted: str | None = None, *, expected: str | None = None) -> None:
    """Send a header with these characters on the wire, and see what its value is at the consumer."""
    where = kit.queue()
    message = kit.round_trip(frame("SEND", kit.to(where, (name, value)), b"a"), where)
    wanted_name, wanted_value = wanted or name, value if expected is None else expected
    found = message.get(wanted_name)
    if found != wanted_value:
        raise Failed(f"the header {wanted_name!r} with the value {wanted_value!r}", f"came {shown(message)}")
    if message.irregularities:
        raise Failed(f"the header {wanted_name!r}, escaped", f"{message.irregularities[0]}: {shown(message)}")


def _fatal(kit: Kit, value: str) -> None:
    client = kit.connect()
    client.send(frame("SEND", kit.to(kit.queue(), ("x", value), ("receipt", "r")), b"a"))
    try:
        client.error()
    except Closed:
        kit.saw("closes without ERROR")


@check("encoding/utf-8-body", "STOMP Frames", MUST)
def utf_8_body(kit: Kit) -> None:
    """Deliver UTF-8 in a body as it was sent."""
    where = kit.queue()
    body = LETTERS.encode()
    message = kit.round_trip(frame("SEND", kit.to(where, ("content-type", "text/plain")), body), where)
    if message.body != body:
        raise Failed(f"the body {LETTERS}", f"came {shown(message)}")


@check("encoding/utf-8-header", "Value Encoding", MUST, LATER)
def utf_8_header(kit: Kit) -> None:
    """Encode headers in UTF-8."""
    _value(kit, "x", LETTERS)


@check("encoding/utf-8-header-name", "Value Encoding", MUST, LATER)
def utf_8_header_name(kit: Kit) -> None:
    """Encode names of headers in UTF-8."""
    _value(kit, "größe", "1")


@check("encoding/not-utf-8", "Value Encoding", CHOICE, LATER)
def not_utf_8(kit: Kit) -> None:
    """Answer a header that is not UTF-8."""
    client = kit.connect()
    data = frame("SEND", kit.to(kit.queue(), ("x", "@"), ("receipt", "r")), b"a")
    client.send(data.replace(b"x:@", b"x:\xff\xfe"))
    found = client.reaction()
    kit.saw("accepts it" if found == "RECEIPT" else found)


@check("encoding/newline", "Value Encoding", MUST, LATER)
def newline(kit: Kit) -> None:
    r"""Take \n for a line end, and write it so."""
    _value(kit, "x", "a\\nb", expected="a\nb")


@check("encoding/colon", "Value Encoding", MUST, LATER)
def colon(kit: Kit) -> None:
    r"""Take \c for a colon, and write it so."""
    _value(kit, "x", "a\\cb\\c", expected="a:b:")


@check("encoding/backslash", "Value Encoding", MUST, LATER)
def backslash(kit: Kit) -> None:
    r"""Take \\ for a backslash, and write it so."""
    _value(kit, "x", "a\\\\nb\\\\", expected="a\\nb\\")


@check("encoding/carriage-return", "Value Encoding", MUST, ("1.2",))
def carriage_return(kit: Kit) -> None:
    r"""Take \r for a carriage return, and write it so."""
    _value(kit, "x", "a\\rb\\r\\n", expected="a\rb\r\n")


@check("encoding/names", "Value Encoding", MUST, LATER)
def names(kit: Kit) -> None:
    """Escape names of headers like values."""
    _value(kit, "a\\cb", "1", "a:b")


@check("encoding/undefined-escape", "Value Encoding", MUST, LATER)
def undefined_escape(kit: Kit) -> None:
    r"""Treat an undefined escape such as \t as a fatal error, with the end of the connection."""
    _fatal(kit, "a\\tb")


@check("encoding/carriage-return-undefined", "Value Encoding", MUST, ("1.1",))
def carriage_return_undefined(kit: Kit) -> None:
    r"""Treat \r as a fatal error: 1.1 does not define it."""
    _fatal(kit, "a\\rb")


@check("encoding/half-an-escape", "Value Encoding", SHOULD, LATER)
def half_an_escape(kit: Kit) -> None:
    """Treat a backslash at the end of a value as a fatal error."""
    _fatal(kit, "a\\")


@check("encoding/no-escapes", "Augmented BNF", MUST, ("1.0",))
def no_escapes(kit: Kit) -> None:
    """Leave backslashes and colons alone: 1.0 has no escapes."""
    _value(kit, "x", "a\\nb:c\\\\d\\t")


@check("encoding/from-1.0", "Value Encoding", MUST, LATER)
def from_1_0(kit: Kit) -> None:
    """Escape for the consumer's version what a sender of 1.0 wrote without escapes."""
    where = kit.queue()
    client = kit.subscribed(where)
    with kit.connect(version="1.0") as sender:
        sender.receipted("SEND", kit.to(where, ("x", "a:b\\c")), b"a")
    message = client.message()
    if message.get("x") != "a:b\\c":
        raise Failed(r"the header x:a\cb\\c, which means a:b\c", f"came {shown(message)}")


@check("encoding/unescaped-colon", "Value Encoding", CHOICE, LATER)
def unescaped_colon(kit: Kit) -> None:
    """Answer a value with a colon that is not escaped."""
    client = kit.connect()
    client.send(frame("SEND", kit.to(kit.queue(), ("x", "a:b"), ("receipt", "r")), b"a"))
    found = client.reaction()
    kit.saw("accepts it" if found == "RECEIPT" else found)


@check("encoding/spaces", "Value Encoding", MUST, LATER)
def spaces(kit: Kit) -> None:
    """Trim and pad nothing in headers."""
    _value(kit, "x", "  two in front, one behind ")


@check("encoding/receipt-id", "RECEIPT", MUST, LATER)
def receipt_id(kit: Kit) -> None:
    """Return a receipt with characters that need escapes, escaped."""
    client = kit.connect()
    client.write("SEND", kit.to(kit.queue(), ("receipt", "a:b\\c\nd")), b"a")
    client.receipt("a:b\\c\nd")


@check("encoding/subscription", "MESSAGE", MUST, LATER)
def subscription(kit: Kit) -> None:
    """Return the id of a subscription with characters that need escapes, escaped."""
    where = kit.queue()
    client = kit.subscribed(where, subscription="a:b\\c")
    client.write("SEND", kit.to(where), b"a")
    message = client.message()
    if message.get("subscription") != "a:b\\c":
        raise Failed(r"subscription:a\cb\\c", f"came {shown(message)}")


@check("encoding/transaction", "BEGIN", MUST, LATER)
def transaction(kit: Kit) -> None:
    """Take a name of a transaction with escapes."""
    where = kit.queue()
    client = kit.connect()
    client.receipted("BEGIN", [("transaction", "t:1\\")])
    client.write("SEND", kit.to(where, ("transaction", "t:1\\")), b"a")
    client.receipted("COMMIT", [("transaction", "t:1\\")])
    kit.left(where, b"a")
