"""CONNECT, CONNECTED and the negotiation of the version."""

from __future__ import annotations

import re

from sluiceway.compliance.client import Client, Closed, shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, Unclear, check
from sluiceway.compliance.wire import VERSIONS, frame


def _connect_with(kit: Kit, replaced: dict[str, str | None], command: str = "CONNECT") -> Client:
    """Open a connection and send a CONNECT with some headers replaced; None: left out."""
    client = kit.open()
    headers = [(name, value) for name, value in kit.connect_headers() if name not in replaced]
    headers += [(name, value) for name, value in replaced.items() if value is not None]
    client.send(frame(command, headers))
    return client


@check("connect/connected", "Connecting", MUST)
def connected(kit: Kit) -> None:
    """Answer CONNECT with CONNECTED, before any other frame."""
    kit.connect()


@check("connect/stomp-command", "CONNECT or STOMP Frame", {"1.1": SHOULD}, LATER)
def stomp_command(kit: Kit) -> None:
    """Handle a STOMP frame in the same manner as CONNECT."""
    kit.connect(command="STOMP")


@check("connect/version", "CONNECTED Frame", MUST, LATER)
def version(kit: Kit) -> None:
    """Say the version of the session in CONNECTED."""
    came = kit.connect().connected
    assert came is not None
    if came.get("version") != kit.version:
        raise Failed(f"version:{kit.version} in CONNECTED", f"came {shown(came)}")


@check("connect/highest-version", "Protocol Negotiation", MUST, LATER)
def highest_version(kit: Kit) -> None:
    """Choose the highest version that both have in common."""
    offered = ",".join(VERSIONS[: VERSIONS.index(kit.version) + 1])
    came = _connect_with(kit, {"accept-version": offered}).expect("CONNECTED")
    if came.get("version") != kit.version:
        raise Failed(f"version:{kit.version} for accept-version:{offered}", f"came {shown(came)}")


@check("connect/unknown-version-among-others", "Protocol Negotiation", MUST, LATER)
def unknown_version_among_others(kit: Kit) -> None:
    """Pass over versions in accept-version that the server does not know."""
    came = _connect_with(kit, {"accept-version": f"{kit.version},9.9"}).expect("CONNECTED")
    if came.get("version") != kit.version:
        raise Failed(f"version:{kit.version} for accept-version:{kit.version},9.9", f"came {shown(came)}")


@check("connect/no-common-version", "Protocol Negotiation", {"1.1": SHOULD}, LATER)
def no_common_version(kit: Kit) -> None:
    """Answer a CONNECT without a version in common with ERROR, and close."""
    _connect_with(kit, {"accept-version": "9.8,9.9"}).error()


@check("connect/no-common-version-lists", "Protocol Negotiation", SHOULD, LATER)
def no_common_version_lists(kit: Kit) -> None:
    """List the supported versions in the header version of that ERROR."""
    came = _connect_with(kit, {"accept-version": "9.9"}).error()
    if kit.version not in re.split(r"[ ,]+", came.get("version") or ""):
        raise Failed(f"the header version with {kit.version} among others", f"came {shown(came)}")


@check("connect/without-accept-version", "Protocol Negotiation", MUST, ("1.2",))
def without_accept_version(kit: Kit) -> None:
    """Take a CONNECT without accept-version for one of 1.0."""
    client = _connect_with(kit, {"accept-version": None})
    came = client.frame("CONNECTED of 1.0, or ERROR")
    if came.command == "ERROR":
        kit.saw("refuses 1.0")
        return
    if came.command != "CONNECTED" or came.get("version") not in (None, "1.0"):
        raise Failed("CONNECTED without a version, or with 1.0", f"came {shown(came)}")


@check("connect/session", "CONNECTED Frame", MUST, ("1.0",))
def session(kit: Kit) -> None:
    """Give each session an identifier of its own in the header session of CONNECTED."""
    found = [client.connected.get("session") for client in (kit.connect(), kit.connect()) if client.connected]
    if None in found or found[0] == found[1]:
        raise Failed("two different values of session", f"came {found[0]!r} and {found[1]!r}")


@check("connect/session-unique", "CONNECTED Frame", MUST, LATER)
def session_unique(kit: Kit) -> None:
    """Name each session differently, if CONNECTED has the header session."""
    found = [client.connected.get("session") for client in (kit.connect(), kit.connect()) if client.connected]
    if None in found:
        kit.saw("no header session")
    elif found[0] == found[1]:
        raise Failed("two different values of session", f"came {found[0]!r} twice")


@check("connect/server-header", "CONNECTED Frame", MUST, LATER)
def server_header(kit: Kit) -> None:
    """Write the header server, if there is one, as NAME[/VERSION] with comments behind a space."""
    came = kit.connect().connected
    assert came is not None
    server = came.get("server")
    if server is None:
        kit.saw("no header server")
    elif not re.fullmatch(r"[^\s/]+(/\S+)?( .*)?", server):
        raise Failed("NAME[/VERSION] and comments", f"came {server!r}")
    else:
        kit.saw(server)


@check("connect/colon-in-value", "Value Encoding", MUST)
def colon_in_value(kit: Kit) -> None:
    """Split the headers of CONNECT at the first colon: they are not escaped."""
    kit.connect([("compliance-note", "a:b:c")])


@check("connect/backslash-in-value", "Value Encoding", MUST, LATER)
def backslash_in_value(kit: Kit) -> None:
    """Leave backslashes in the headers of CONNECT alone: nothing is escaped there."""
    kit.connect([("compliance-note", "C:\\temp\\new")])


@check("connect/without-host", "CONNECT or STOMP Frame", CHOICE, LATER)
def without_host(kit: Kit) -> None:
    """Answer a CONNECT without the required header host: with CONNECTED, or with ERROR and the end."""
    _accepted_or_refused(kit, _connect_with(kit, {"host": None}))


@check("connect/unknown-host", "CONNECT or STOMP Frame", CHOICE, LATER)
def unknown_host(kit: Kit) -> None:
    """Answer a CONNECT with an unknown host: with the default virtual host, or with ERROR and the end."""
    _accepted_or_refused(kit, _connect_with(kit, {"host": "unknown.compliance.invalid"}))


def _accepted_or_refused(kit: Kit, client: Client) -> None:
    came = client.frame("CONNECTED or ERROR")
    if came.command == "ERROR":
        client.end("the end of the connection behind ERROR")
        kit.saw("refuses it")
    elif came.command == "CONNECTED":
        kit.saw("accepts it")
    else:
        raise Failed("CONNECTED or ERROR", f"came {shown(came)}")


@check("connect/wrong-passcode", "Connecting", SHOULD)
def wrong_passcode(kit: Kit) -> None:
    """Reject a wrong passcode with ERROR, and close."""
    login = kit.settings.dialect.login
    kit.need(login is not None, "no --login is given, so a wrong passcode can't be told from a right one")
    client = _connect_with(kit, {"login": login, "passcode": "wrong-passcode-of-the-compliance-kit"})
    came = client.frame("ERROR")
    if came.command == "CONNECTED":
        raise Unclear("the broker takes any passcode")
    if came.command != "ERROR":
        raise Failed("ERROR", f"came {shown(came)}")
    client.end("the end of the connection behind ERROR")


@check("connect/frame-before-connect", "Connecting", SHOULD)
def frame_before_connect(kit: Kit) -> None:
    """Serve nothing before CONNECT: a SEND as the first frame is not confirmed."""
    client = kit.open()
    client.send(frame("SEND", [("destination", kit.queue()), ("receipt", "r")], b"too early"))
    found = client.reaction()
    if not found.startswith(("ERROR", "closes")):
        raise Failed("ERROR or the end of the connection", f"came {found}")
    kit.saw(found)


@check("connect/no-stomp", "Connecting", SHOULD, ("1.2",))
def no_stomp(kit: Kit) -> None:
    """End a connection that does not speak STOMP, such as one with a request of HTTP."""
    client = kit.open()
    client.send(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n\0")
    found = client.reaction()
    if not found.startswith(("ERROR", "closes")):
        raise Failed("ERROR or the end of the connection", f"came {found}")
    kit.saw(found)


@check("connect/second-connect", "Once Connected", CHOICE)
def second_connect(kit: Kit) -> None:
    """Answer a second CONNECT on a connection."""
    client = kit.connect()
    client.send(frame("CONNECT", kit.connect_headers()))
    kit.saw(client.reaction())


@check("connect/pipelined", "Connecting", CHOICE)
def pipelined(kit: Kit) -> None:
    """Serve frames that are sent right behind CONNECT, without waiting for CONNECTED."""
    client = kit.open()
    send = client.bytes_of("SEND", kit.to(kit.queue(), ("receipt", "r")), b"at once")
    client.send(frame("CONNECT", kit.connect_headers()) + send)
    kit.accepted(client)
    try:
        client.receipt("r")
        kit.saw("serves them")
    except Closed:
        kit.saw("closes")


@check("connect/eols-before", "Augmented BNF", CHOICE)
def eols_before(kit: Kit) -> None:
    """Take line ends in front of CONNECT, as some clients send them."""
    client = kit.open()
    client.send(b"\n\n" + frame("CONNECT", kit.connect_headers()))
    kit.saw("takes them" if client.reaction() == "CONNECTED" else "refuses them")


@check("connect/rapid", "Connection Lingering", MUST)
def rapid(kit: Kit) -> None:
    """Serve clients that connect and leave in quick succession."""
    for _ in range(15):
        kit.connect().close()
    kit.connect()
