"""A small LDAP server for tests: real messages over real sockets (RFC 4511, in the words of ldap3's own grammar).

It knows simple binds, searches with filters of equality and of presence, and, like real ones, takes a bind without
passcode for an anonymous one. Names compare without regard to case.
"""

from __future__ import annotations

import socketserver
import threading
from typing import Any, Self

from sluiceway.security.directory import ldap3  # its import keeps quiet about names that pyasn1 deprecates

from ldap3.core.exceptions import LDAPException  # isort: skip
from ldap3.protocol import rfc4511  # isort: skip
from ldap3.utils.dn import parse_dn  # isort: skip
from pyasn1.codec.ber import decoder, encoder  # isort: skip

assert ldap3

SUFFIX = "dc=example,dc=org"
READER = f"cn=reader,{SUFFIX}"
PEOPLE = f"ou=people,{SUFFIX}"
GROUPS = f"ou=groups,{SUFFIX}"
ANN = f"uid=ann,{PEOPLE}"
ENTRIES: dict[str, dict[str, list[str]]] = {
    READER: {"cn": ["reader"], "userPassword": ["reads"]},
    ANN: {"uid": ["ann"], "memberOf": [f"cn=ops,{GROUPS}"], "userPassword": ["annpass"]},
    f"uid=bob*(x),{PEOPLE}": {"uid": ["bob*(x)"], "userPassword": ["bobpass"]},
    f"uid=two,{PEOPLE}": {"uid": ["two", "deux"], "userPassword": ["twopass"]},
    f"uid=root,{PEOPLE}": {"uid": ["root"], "userPassword": ["rootpass"]},
    f"cn=ops,{GROUPS}": {"cn": ["ops"], "member": [ANN]},
}


def _normal(dn: str) -> str:
    try:
        return ",".join(
            f"{kind}={value.strip()}".lower() for kind, value, _ in parse_dn(dn.replace("\\ ,", ","), strip=True)
        )
    except LDAPException:
        return dn.lower()


class LdapServer:
    """A server on a free port; a context manager."""

    def __init__(self) -> None:
        self.entries = {dn: dict(attributes) for dn, attributes in ENTRIES.items()}
        self.binds: list[tuple[str, str]] = []
        """DN and passcode of each bind."""
        self.connections_count = 0
        self.hold = threading.Event()
        """Binds wait for this; set at the start."""
        self.hold.set()
        self.at_once = self.at_once_max = 0
        self.two_at_once = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                outer.connections_count += 1
                outer._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._sockets: list[Any] = []
        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"ldap://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self.cut()
        self._thread.join()

    def cut(self) -> None:
        """Close all connections, as a restart does."""
        for each in self._sockets:
            try:
                each.shutdown(2)
            except OSError:
                pass
        self._sockets.clear()

    def _serve(self, connection: Any) -> None:
        self._sockets.append(connection)
        data = b""
        while True:
            try:
                read = connection.recv(65536)
            except OSError:
                return
            if not read:
                return
            data += read
            while len(data) > 1:
                try:
                    message, data = decoder.decode(data, asn1Spec=rfc4511.LDAPMessage())
                except Exception:  # noqa: BLE001 - not all of it is there yet
                    break
                kind = message["protocolOp"].getName()
                for name, answer in self._answers(kind, message["protocolOp"][kind]):
                    reply = rfc4511.LDAPMessage()
                    reply["messageID"] = message["messageID"]
                    reply["protocolOp"] = rfc4511.ProtocolOp().setComponentByName(name, answer)
                    connection.sendall(encoder.encode(reply))

    def _answers(self, kind: str, request: Any) -> list[tuple[str, Any]]:
        if kind == "bindRequest":
            return [("bindResponse", _result(rfc4511.BindResponse(), self._bind(request)))]
        if kind == "searchRequest":
            return [
                *(("searchResEntry", entry) for entry in self._search(request)),
                ("searchResDone", _result(rfc4511.SearchResultDone(), 0)),
            ]
        return []

    def _bind(self, request: Any) -> int:
        dn, passcode = str(request["name"]), bytes(request["authentication"]["simple"]).decode()
        with self._lock:
            self.at_once += 1
            self.at_once_max = max(self.at_once, self.at_once_max)
            if self.at_once == 2:
                self.two_at_once.set()
        self.hold.wait(30)
        with self._lock:
            self.at_once -= 1
        self.binds.append((dn, passcode))
        if not passcode:
            return 0  # an «unauthenticated bind»
        found = next((entry for name, entry in self.entries.items() if _normal(name) == _normal(dn)), {})
        return 0 if passcode in found.get("userPassword", []) else 49

    def _search(self, request: Any) -> list[Any]:
        base, scope = _normal(str(request["baseObject"])), int(request["scope"])
        wanted = {str(name).lower() for name in request["attributes"]}
        where = request["filter"]
        found = []
        for dn, attributes in self.entries.items():
            name = _normal(dn)
            if name != base and not (scope == 2 and name.endswith("," + base)):
                continue
            if where.getName() == "equalityMatch":
                match = where["equalityMatch"]
                key, value = str(match["attributeDesc"]), bytes(match["assertionValue"]).decode()
                values = next((them for it, them in attributes.items() if it.lower() == key.lower()), [])
                if value.strip().lower() not in [each.lower() for each in values]:
                    continue
            entry = rfc4511.SearchResultEntry()
            entry["object"] = dn
            entry["attributes"] = rfc4511.PartialAttributeList()
            shown = [(key, values) for key, values in attributes.items() if key.lower() in wanted]
            for place, (key, values) in enumerate(shown):
                attribute = rfc4511.PartialAttribute()
                attribute["type"] = key
                attribute["vals"] = rfc4511.Vals()
                for number, value in enumerate(values):
                    attribute["vals"][number] = value
                entry["attributes"][place] = attribute
            found.append(entry)
        return found


def _result(response: Any, code: int) -> Any:
    response["resultCode"] = code
    response["matchedDN"] = ""
    response["diagnosticMessage"] = ""
    return response
