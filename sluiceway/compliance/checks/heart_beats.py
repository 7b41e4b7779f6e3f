"""Heart-beats: their negotiation, both directions, silence."""

from __future__ import annotations

import re
import time

from sluiceway.compliance.client import Client, Closed, Late, shown
from sluiceway.compliance.kit import Kit
from sluiceway.compliance.registry import CHOICE, LATER, MUST, SHOULD, Failed, Unclear, Unsupported, check
from sluiceway.compliance.wire import frame

SECTION = "Heart-beating"
QUIET_BEATS = 3
"""Number of the asked intervals in which no heart-beat must come where none was asked for."""


def _offer(client: Client) -> tuple[int, int]:
    """Return the numbers of the header heart-beat of CONNECTED; 0, 0 without it."""
    assert client.connected is not None
    value = client.connected.get("heart-beat")
    if value is None:
        return 0, 0
    found = re.fullmatch(r"(\d{1,9}),(\d{1,9})", value)
    if found is None:
        raise Failed("heart-beat with two numbers and a comma", f"came {shown(client.connected)}")
    return int(found[1]), int(found[2])


def _interval(kit: Kit, asked_ms: int, offered_ms: int, whose: str) -> float:
    """Return the agreed time between heart-beats, in seconds."""
    if not offered_ms:
        raise Unsupported(f"CONNECTED says that the broker {whose} no heart-beats")
    agreed_ms = max(asked_ms, offered_ms)
    if agreed_ms > kit.settings.beat_ms_max:
        raise Unclear(f"heart-beats every {agreed_ms} ms are longer than --beat-max {kit.settings.beat_ms_max}")
    return agreed_ms / 1000


@check("heart-beat/header", SECTION, MUST, LATER)
def header(kit: Kit) -> None:
    """Answer with two numbers and a comma, if CONNECTED has the header heart-beat."""
    client = kit.connect([("heart-beat", "1000,1000")])
    can_ms, wants_ms = _offer(client)
    kit.saw(f"offers {can_ms},{wants_ms}")


@check("heart-beat/sends", SECTION, MUST, LATER)
def sends(kit: Kit) -> None:
    """Send data at least as often as agreed, an EOL if there is nothing else."""
    ask_ms = kit.settings.beat_ms
    client = kit.connect([("heart-beat", f"0,{ask_ms}")])
    seconds = _interval(kit, ask_ms, _offer(client)[0], "sends")
    for _ in range(3):
        patience = seconds * 2 + 0.5
        if not client.wait_data(patience):
            raise Failed(f"an EOL every {seconds:g} s", f"nothing came in {patience:g} s")


@check("heart-beat/none-without-header", SECTION, MUST, LATER)
def none_without_header(kit: Kit) -> None:
    """Treat a missing heart-beat as 0,0: send none, and expect none."""
    _silent(kit, kit.connect())


@check("heart-beat/none-for-zero", SECTION, MUST, LATER)
def none_for_zero(kit: Kit) -> None:
    """Send no heart-beats to a client that wants none, and expect none from one that sends none."""
    _silent(kit, kit.connect([("heart-beat", "0,0")]))


def _silent(kit: Kit, client: Client) -> None:
    client.beats(0.2)  # EOLs behind CONNECTED are none
    seconds = QUIET_BEATS * kit.settings.beat_ms / 1000
    if count := client.beats(seconds):
        raise Failed("no heart-beats", f"came {count} in {seconds:g} s")
    client.receipted("SEND", kit.to(kit.queue()), b"still there")


@check("heart-beat/keeps-connection", SECTION, MUST, LATER)
def keeps_connection(kit: Kit) -> None:
    """Keep a connection whose client sends an EOL as often as agreed."""
    _alive(kit, lambda _client: b"\n")


@check("heart-beat/frames-count", SECTION, MUST, LATER)
def frames_count(kit: Kit) -> None:
    """Take any data for a sign of life, not only EOLs."""
    where = kit.queue()
    _alive(kit, lambda client: client.bytes_of("SEND", kit.to(where), b"a"))


def _alive(kit: Kit, sign: object) -> None:
    assert callable(sign)
    ask_ms = kit.settings.beat_ms
    client = kit.connect([("heart-beat", f"{ask_ms},0")])
    seconds = _interval(kit, ask_ms, _offer(client)[1], "wants")
    end = time.monotonic() + seconds * 3.5 + 0.5
    while time.monotonic() < end:
        client.send(sign(client))
        client.beats(seconds * 0.5)
    client.receipted("SEND", kit.to(kit.queue("end")), b"still there")


@check("heart-beat/silence", SECTION, CHOICE, LATER)
def silence(kit: Kit) -> None:
    """Declare a client dead that promised heart-beats and is silent."""
    ask_ms = kit.settings.beat_ms
    client = kit.connect([("heart-beat", f"{ask_ms},0")])
    seconds = _interval(kit, ask_ms, _offer(client)[1], "wants")
    began = time.monotonic()
    try:
        came = client.frame("ERROR or the end", seconds * 4)
    except Late:
        kit.saw(f"waits for more than 4 times the agreed {seconds:g} s")
        return
    except Closed:
        kit.saw(f"closes after {(time.monotonic() - began) / seconds:.1f} times the agreed time")
        return
    if came.command != "ERROR":
        raise Failed("ERROR or the end", f"came {shown(came)}")
    client.end()
    kit.saw(f"ERROR after {(time.monotonic() - began) / seconds:.1f} times the agreed time")


@check("heart-beat/patience", SECTION, SHOULD, LATER)
def patience(kit: Kit) -> None:
    """Allow a margin of error: a heart-beat that is a quarter late ends nothing."""
    ask_ms = kit.settings.beat_ms
    client = kit.connect([("heart-beat", f"{ask_ms},0")])
    seconds = _interval(kit, ask_ms, _offer(client)[1], "wants")
    client.beats(seconds * 1.25)
    client.send(b"\n")
    client.receipted("SEND", kit.to(kit.queue()), b"still there")


@check("heart-beat/malformed", SECTION, CHOICE, LATER)
def malformed(kit: Kit) -> None:
    """Answer a CONNECT with a heart-beat that is no pair of numbers."""
    client = kit.open()
    client.send(frame("CONNECT", [*kit.connect_headers(), ("heart-beat", "often")]))
    found = client.reaction()
    kit.saw("accepts it" if found == "CONNECTED" else found)
