"""The `selector` header of SUBSCRIBE: what it says, and how a wrong one is refused."""

from __future__ import annotations

from collections.abc import Generator

from ...queues.selectors import Selection, SelectorError
from ...queues.selectors.table import SelectorLimitError
from ...queues.steps import Waiting
from .errors import ProtocolError
from .hub import Hub


def selecting(text: str, hub: Hub) -> Generator[Waiting | None, None, Selection | None]:
    """What a SUBSCRIBE with this selector takes, made in steps; None: all. Raises ProtocolError, whose body shows the
    place.
    """
    try:
        return (yield from hub.registry.selectors.taking(text, message_token=hub.message_token.decode()))
    except SelectorError as error:
        raise ProtocolError("bad-selector", f"the selector is wrong at {error}", f"Here:\n{error.picture}\n") from None
    except SelectorLimitError as error:
        raise ProtocolError(
            "too-many-selectors", str(error), "Use shorter ones, the same for more consumers, or raise that limit."
        ) from None
