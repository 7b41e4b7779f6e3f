"""Two hubs find out whether they belong together, and say in words why not."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.link.greeting import Greeting, check, decode, proof
from sluiceway.protocols.link.machine import LinkState
from sluiceway.protocols.link.records import PREFACE, Kind, LinkFault, encode
from tests.protocols.link.pairs import end_of, greeting, linked, talk, written


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": "other"}, "belongs to the cluster 'other', this one to 'c'"),
        ({"shards_count": 8}, "counts 8 shards, this one 4"),
        ({"hub": "a"}, "each hub needs a name of its own"),
        ({"hub": "z"}, "hub 'z' answers where hub 'b' was expected"),
        ({"challenge": "of a"}, "repeats the greeting"),
    ],
)
def test_hubs_that_do_not_belong_together_are_refused(changes: dict[str, Any], words: str) -> None:
    """Another cluster, another number of shards, another hub than was dialled."""
    with pytest.raises(LinkFault, match=words):
        check(greeting("a"), greeting("b", **changes), expected_hub="b")


def test_another_version_is_refused_whatever_else_it_says() -> None:
    """The words name both versions and the software of the peer."""
    members = json.loads(greeting("b").encode()) | {"version": 2, "cluster": 5}
    with pytest.raises(LinkFault, match=r"version 2 of links \('sluiceway/1'\), this hub version 1"):
        decode(json.dumps(members).encode())


def test_members_of_later_versions_are_ignored() -> None:
    """A greeting may grow."""
    members = json.loads(greeting("b").encode()) | {"colour": "blue"}
    assert decode(json.dumps(members).encode()) == greeting("b")


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.integers() | st.text(max_size=8), st.lists).map(
            lambda each: json.dumps(each).encode()
        ),
    )
)
def test_no_payload_brings_the_decoder_down(payload: bytes) -> None:
    """Nonsense is a LinkFault."""
    with pytest.raises(LinkFault):
        decode(payload)


def test_a_peer_without_the_secret_is_refused_by_either_side() -> None:
    """Nothing of a flow is looked at before the proof."""
    for dialled in (True, False):
        one = end_of(greeting("a"), dialled=dialled)
        other = end_of(greeting("b"), dialled=not dialled, secret=b"guessed")
        with pytest.raises(LinkFault, match="does not know the secret"):
            talk(one, other)


def test_a_proof_is_worth_nothing_for_another_greeting_or_side() -> None:
    """Neither played again nor turned round."""
    a, b = greeting("a"), greeting("b")
    again = attrs.evolve(a, challenge="fresh")
    proofs = {
        proof(b"s", b, a, dialled=True),
        proof(b"s", b, a, dialled=False),
        proof(b"s", a, b, dialled=True),
        proof(b"s", b, again, dialled=True),
        proof(b"t", b, a, dialled=True),
    }
    assert len(proofs) == 5


def test_without_a_secret_the_stream_has_to_prove_the_peer() -> None:
    """The check of the shell decides."""
    asked: list[str] = []

    def refuse(peer: Greeting) -> None:
        asked.append(peer.hub)
        raise LinkFault("its certificate is for another hub")

    one = end_of(greeting("a"), dialled=True, secret=None, prove=refuse)
    with pytest.raises(LinkFault, match="for another hub"):
        talk(one, end_of(greeting("b"), dialled=False, secret=None))
    assert asked == ["b"]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.HELLO])
def test_nothing_comes_before_the_greeting(kind: Kind) -> None:
    """Neither a flow nor data of a stranger."""
    one = end_of(greeting("a"), dialled=False)
    with pytest.raises(LinkFault, match="in the state GREETING"):
        one.machine.receive(PREFACE + encode(kind, 1))
    assert not one.opened


def test_both_sides_know_each_other_behind_the_greeting() -> None:
    """An open link has the greeting of the peer."""
    one, other = linked()
    assert one.machine.peer == greeting("b")
    assert other.machine.peer == greeting("a")
    one.machine.end("over")
    assert one.machine.state is LinkState.ENDED
    assert not written(one)
