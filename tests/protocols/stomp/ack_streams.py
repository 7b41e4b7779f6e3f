"""Streams of ACKs and NACKs in every shape that a client may write, and a slow reading of them to compare with.

The reading takes one frame after the other apart, line by line, and shares nothing with the parser.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import permutations
from typing import Final

from sluiceway.protocols.stomp.escaping import Version

LINE_BYTES_MAX: Final = 400
"""The limit on header lines that the readings here keep to."""

ACK_COMMANDS: Final[dict[Version, tuple[str, ...]]] = {"1.0": ("ACK",), "1.1": ("ACK", "NACK"), "1.2": ("ACK", "NACK")}

_NEEDED: Final[dict[Version, tuple[tuple[str, ...], ...]]] = {
    "1.0": (("message-id",), ("message-id", "subscription")),
    "1.1": (("message-id", "subscription"),),
    "1.2": (("id",), ("id", "subscription"), ("id", "message-id")),
}
_EXTRA: Final = ((), ("x",), ("receipt",), ("transaction",))

SHAPES: Final[dict[Version, tuple[tuple[str, ...], ...]]] = {
    version: tuple(order for needed in sets for extra in _EXTRA for order in permutations((*needed, *extra)))
    for version, sets in _NEEDED.items()
}
"""The names of an ACK's headers, in every order."""

EOLS: Final = ("\n", "\r\n")
GAPS: Final = ("", "\n", "\r\n", "\n\n")
"""What stands behind the NUL of a frame."""

_ESCAPES: Final = {"\\\\": "\\", "\\c": ":", "\\n": "\n", "\\r": "\r"}


def frame(command: str, headers: list[tuple[str, str]], eol: str = "\n", gap: str = "") -> bytes:
    return "".join([command, eol, *(f"{name}:{value}{eol}" for name, value in headers), eol, "\0", gap]).encode()


def acks(command: str, names: tuple[str, ...], tokens: list[str], eol: str = "\n", gap: str = "") -> bytes:
    """One frame per token; all are of one subscription."""
    same = {"subscription": "s-1", "x": "y", "receipt": "r", "transaction": "t"}
    return b"".join(frame(command, [(name, same.get(name, token)) for name in names], eol, gap) for token in tokens)


def tokens_for(version: Version) -> tuple[str, ...]:
    """Tokens of all lengths up to the limit on header lines, and others that are more than themselves."""
    longest = LINE_BYTES_MAX - len("subscription:")
    plain = ("1", "1-12657", "a:b", "NACK", "ACK", "id", "x" * 255, "x" * 256, "x" * 257, "x" * longest)
    escaped = ("a\\cb", "\\\\") if version != "1.0" else ("a\\cb", "\\")
    return (*plain, *escaped, "ä", "a b")


def random_stream(version: Version, chance: random.Random) -> bytes:
    """Runs of ACKs and NACKs in changing shapes and subscriptions, and other frames here and there."""
    pieces: list[bytes] = []
    odd = tokens_for(version)
    for _ in range(chance.randint(1, 6)):
        command = chance.choice(ACK_COMMANDS[version])
        # Mostly what clients write: those are the shapes with a fast way.
        plain = chance.random() < 0.7
        names = chance.choice(SHAPES[version][:2] if plain else SHAPES[version])
        eol = "\n" if plain else chance.choice(EOLS)
        gap = chance.choice(GAPS[:2] if plain else GAPS)
        subscriptions = chance.choice(("s", "s", "ab", "abc"))
        for number in range(chance.choice((1, 2, 5, 40))):
            token = chance.choice(odd) if chance.random() < 0.03 else f"1-{number + 10 ** chance.randint(0, 5)}"
            values = {
                "subscription": chance.choice(subscriptions),
                "x": "y",
                "receipt": f"r-{number}",
                "transaction": "t",
            }
            pieces.append(frame(command, [(name, values.get(name, token)) for name in names], eol, gap))
        if chance.random() < 0.4:
            pieces.append(
                chance.choice(
                    (
                        frame("BEGIN", [("transaction", "t")]),
                        frame("SUBSCRIBE", [("id", "1"), ("destination", "/queue/a")]),
                        frame("UNSUBSCRIBE", [("id", "1"), ("destination", "/queue/a")], gap="\n"),
                        b"SEND\ndestination:/queue/a\nreceipt:r\n\nACK\nid:1\n\n\0",
                        b"SEND\ndestination:/queue/a\n\n\nACK\nid:1\n\n\0\n",
                    )
                )
            )
    return b"".join(pieces)


def random_chunks(data: bytes, chance: random.Random) -> list[bytes]:
    largest = chance.choice((3, 20, 60, 400, 3000))
    chunks: list[bytes] = []
    at = 0
    while at < len(data):
        size = chance.randint(1, largest)
        chunks.append(data[at : at + size])
        at += size
    return chunks


# -- the slow reading --------------------------------------------------------------------------------------------------


def read_slowly(data: bytes, version: Version) -> list[tuple[object, ...]]:
    """What `connections.flat` makes of a stream of whole frames without content-length; a fault as its code only."""
    read: list[tuple[object, ...]] = []
    for command, lines, body in _frames(data):
        if any(len(line) > LINE_BYTES_MAX for line in lines):
            read.append(("fault", "header-line-too-long"))
            break
        headers: dict[str, str] = {}
        for line in lines:
            name, value = (_meaning(part, version) for part in line.decode().split(":", 1))
            headers.setdefault(name, value)
        read.append(_read_frame(command, headers, body, version))
    return read


def _frames(data: bytes) -> Iterator[tuple[str, list[bytes], bytes]]:
    rest = data.lstrip(b"\r\n")
    while rest:
        lines: list[bytes] = []
        while True:
            line, rest = rest.split(b"\n", 1)
            line = line.removesuffix(b"\r")
            if not line:
                break
            lines.append(line)
        body, rest = rest.split(b"\0", 1)
        rest = rest.lstrip(b"\r\n")
        yield lines[0].decode(), lines[1:], body


def _meaning(text: str, version: Version) -> str:
    if version == "1.0":
        return text.strip(" \t")
    read = ""
    while text:
        length = 2 if text[0] == "\\" else 1
        read += _ESCAPES[text[:2]] if length == 2 else text[0]
        text = text[length:]
    return read


def _read_frame(command: str, headers: dict[str, str], body: bytes, version: Version) -> tuple[object, ...]:
    if command == "SEND":
        # All that is forwarded of those in here is their destination.
        block = f"destination:{headers['destination']}".encode()
        forwarded = (("destination", headers["destination"]),)
        return ("SEND", block + b"\n\n" + body + b"\0", headers.get("receipt"), forwarded, None, 4)
    if command in ("ACK", "NACK") and not {"receipt", "transaction"} & headers.keys():
        if version == "1.2":
            return (command, headers["id"].encode())
        subscription = headers.get("subscription")
        return (command, (None if subscription is None else subscription.encode(), headers["message-id"].encode()))
    return ("frame", command, tuple(headers.items()), body)
