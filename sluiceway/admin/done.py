"""Result of an action, in numbers and in words."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(slots=True)
class Done:
    """Result of an action."""

    done: dict[str, Any]
    words: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"done": self.done, "words": self.words}
