"""One header of a head, looked up without taking the block apart: for selectors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.protocols.stomp.limits import StompLimits


def head(block: bytes, version: Version = "1.2") -> SendHead:
    return SendHead.parse(block, version, StompLimits())[0]


def test_the_first_of_repeated_headers_counts_and_names_are_whole() -> None:
    found = head(b"color:red\ndestination:/queue/a\nmy-color:green\ncolor:blue\nempty:\nlast:x y")
    assert found.header("color") == "red"
    assert found.header("my-color") == "green"
    assert found.header("empty") == ""
    assert found.header("last") == "x y"
    assert found.header("olor") is None
    assert found.header("") is None
    assert found.header("red\ndestination") is None
    assert found.header("color:red\ndestination") is None


def test_escapes_and_padding_are_read_as_their_version_has_them() -> None:
    assert head(b"destination:/queue/a\na\\cb:x\\ny").header("a:b") == "x\ny"
    assert head(b"destination:/queue/a\n color : red ", "1.0").header("color") == "red"


@given(st.dictionaries(st.text(alphabet="ab-: \n", max_size=4), st.text(alphabet="ab:\\ \n", max_size=4), max_size=5))
def test_it_is_what_all_headers_say(headers: dict[str, str]) -> None:
    made = head(b"destination:/queue/a").with_headers({name: value for name, value in headers.items() if name})
    for name in [*headers, "a", "b", "destination"]:
        assert made.header(name) == made.headers.get(name)
