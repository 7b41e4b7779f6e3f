"""The errors of docs/faq.md are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.architecture.sources import ROOT, modules, parsed
from tests.examples.test_pages import ERRORS_PAGE

FAQ = ROOT / "docs" / "faq.md"
GAP = "…"
"""What stands for the parts of a message that differ."""


def headings() -> list[str]:
    return re.findall(r"^### (.+)$", FAQ.read_text(encoding="utf-8"), re.MULTILINE)


def messages() -> list[str]:
    """The headings that quote a message: questions of readers begin with a capital letter or end without a code."""
    texts = [re.sub(r"^`[a-z-]+`(?:: )?", "", heading) for heading in headings()]
    return [text for text in texts if (text and not text[0].isupper()) or text.startswith(("STOMP ", "SEND with"))]


def flat(node: ast.expr) -> str:
    """A text of the source, with gaps for what is known at run time only."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(flat(part) for part in parts)
        case _:
            return GAP


@cache
def texts() -> list[str]:
    found = []
    for path in modules("store", "queues", "protocols", "sluiceway"):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                found.append(flat(node))
    return found


def is_in_the_code(message: str) -> bool:
    """Whether one text, or texts that are put together, have all pieces of the message."""
    pieces = [piece.strip() for piece in message.split(GAP) if len(piece.strip()) > 2]
    whole = re.compile(".*?".join(re.escape(piece) for piece in pieces), re.DOTALL)
    if any(whole.search(text) for text in texts()):
        return True
    return all(any(piece in text for text in texts()) for piece in pieces)


@pytest.mark.parametrize("message", messages())
def test_a_message_is_one_of_the_code(message: str) -> None:
    assert is_in_the_code(message)


def test_codes_are_those_of_the_reference() -> None:
    reference = ERRORS_PAGE.read_text(encoding="utf-8")
    codes = [code[1] for heading in headings() if (code := re.match(r"`([a-z-]+)`", heading))]
    assert len(codes) > 20
    assert not [code for code in codes if f"`{code}`" not in reference]
