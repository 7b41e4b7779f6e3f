"""The `selector` header of SUBSCRIBE: what it says, and how a wrong one is refused."""

from __future__ import annotations

from collections.abc import Mapping

from protocols.stomp.errors import ProtocolError
from protocols.stomp.hub import Hub
from queues.selectors import Selection, SelectorError, compile_selector


def selection_of(headers: Mapping[str, str], hub: Hub) -> Selection | None:
    """What this SUBSCRIBE selects by; None: it takes all. Raises ProtocolError, whose body shows the place."""
    text = headers.get("selector")
    if text is None:
        return None
    try:
        selector = compile_selector(text, message_token=hub.message_token.decode())
    except SelectorError as error:
        raise ProtocolError("bad-selector", f"the selector is wrong at {error}", f"Here:\n{error.picture}\n") from None
    return None if selector is None else Selection(selector)
