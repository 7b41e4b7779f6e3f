"""Bodies as text, where they are text."""

from __future__ import annotations

from typing import Final

PREVIEW_LENGTH: Final = 200
"""Characters."""


def as_text(body: bytes, *, is_whole: bool) -> str | None:
    """Return a body as text, None if it is none. One that was cut may end in the midst of a character."""
    for cut in range(1 if is_whole else 4):
        try:
            text = body[: len(body) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def preview(body: bytes, *, is_whole: bool) -> str:
    """Return the beginning of a body, in hexadecimal if it is no text."""
    text = as_text(body, is_whole=is_whole)
    if text is None:
        return body[: PREVIEW_LENGTH // 4].hex(" ")
    if len(text) > PREVIEW_LENGTH or not is_whole:
        return text[:PREVIEW_LENGTH] + "…"
    return text
