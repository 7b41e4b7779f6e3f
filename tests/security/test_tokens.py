"""Bearer tokens: which are believed, and what of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.security.outside import NotAcceptedError, Reason
from sluiceway.security.outside_config import OAuthIssuer
from sluiceway.security.tokens import KeysError, Unverified, is_token, read_keys
from tests.security.signing import AUDIENCE, ISSUER, document, entry_of, key_of, token

CONFIG = OAuthIssuer(issuer=ISSUER, audiences=(AUDIENCE,), keys_url="https://login.example.org/keys")
NOW = 1_000_000.0
GOOD = token("ec", now=NOW)
KEYS = read_keys(document("ec", "rsa"))[0]


def accepted(text: str, config: OAuthIssuer = CONFIG, now: float = NOW) -> Any:
    unverified = Unverified.of(text, config.token_bytes_max)
    unverified.check_algorithm(config)
    key = unverified.key_of(KEYS)
    if key is None:
        raise NotAcceptedError(Reason.KEY, "unknown")
    return unverified.verified(key, config, now)


def refusal(text: str, config: OAuthIssuer = CONFIG, now: float = NOW) -> Reason:
    with pytest.raises(NotAcceptedError) as refused:
        accepted(text, config, now)
    assert len(str(refused.value)) < 600
    return refused.value.reason


def encoded(part: object) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("name", ["ec", "rsa"])
def test_a_good_token_is_its_user_until_it_ends(name: str) -> None:
    claims = accepted(token(name, now=NOW))
    assert (claims.user, claims.groups) == ("ann", frozenset())
    assert claims.ends_at == NOW + 60 + CONFIG.leeway_seconds


def test_what_is_signed_by_nothing_or_by_a_public_key_as_a_secret_is_refused() -> None:
    """The two attacks on JWT that everybody knows."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "root", "exp": NOW + 60}
    for algorithm in ("none", "None", "NONE", ""):
        assert refusal(f"{encoded({'alg': algorithm, 'kid': 'rsa'})}.{encoded(claims)}.") is Reason.SIGNATURE
    pem = key_of("rsa").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(claims)}"
    made = f"{signed}.{encoded(hmac.digest(pem, signed.encode(), hashlib.sha256))}"
    assert refusal(made) is Reason.SIGNATURE
    with pytest.raises(ValueError, match="who can check such a token can make one"):
        OAuthIssuer(issuer=ISSUER, audiences=(AUDIENCE,), keys_url="https://h", algorithms=("RS256", "HS256"))


def test_a_token_can_bring_no_key_and_no_algorithm_of_its_own() -> None:
    other = {"jwk": entry_of("ec-other"), "jku": "https://evil.example.org/keys", "kid": "ec"}
    assert refusal(token("ec-other", now=NOW, head=other)) is Reason.SIGNATURE
    only = OAuthIssuer(issuer=ISSUER, audiences=(AUDIENCE,), keys_url="https://h", algorithms=("RS256",))
    assert refusal(token("ec", now=NOW), only) is Reason.SIGNATURE
    assert refusal(token("ec", now=NOW, head={"kid": "rsa"})) is Reason.KEY, "a key of another kind does not fit"
    assert refusal(token("ec", now=NOW, head={"crit": ["exp"]})) is Reason.TOKEN


def test_without_kid_the_only_key_that_fits_counts() -> None:
    bare = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": NOW + 9}, key_of("ec"), "ES256")
    assert accepted(bare).user == "ann"
    assert Unverified.of(bare, 8192).key_of([*KEYS, *read_keys(document("ec-other"))[0]]) is None


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "others"}, Reason.AUDIENCE),
        ({"aud": None}, Reason.AUDIENCE),
        ({"aud": {"sluiceway": 1}}, Reason.AUDIENCE),
        ({"exp": None}, Reason.EXPIRED),
        ({"exp": "tomorrow"}, Reason.EXPIRED),
        ({"exp": NOW - 31}, Reason.EXPIRED),
        ({"exp": True}, Reason.EXPIRED),
        ({"nbf": NOW + 31}, Reason.NOT_YET),
        ({"nbf": "soon"}, Reason.NOT_YET),
        ({"sub": None}, Reason.NAME),
        ({"sub": ""}, Reason.NAME),
        ({"sub": "*"}, Reason.NAME),
        ({"sub": "a\nb"}, Reason.NAME),
        ({"sub": "x" * 201}, Reason.NAME),
        ({"iss": None}, Reason.ISSUER),
    ],
)
def test_claims_that_are_wrong_or_missing(claims: dict[str, Any], reason: Reason) -> None:
    made = token("ec", now=NOW, **{name: value for name, value in claims.items() if name != "sub" or value is None})
    if claims.get("sub") is not None:
        made = token("ec", now=NOW, sub=claims["sub"])
    assert refusal(made) is reason


def test_clocks_may_differ_by_the_leeway() -> None:
    assert accepted(token("ec", now=NOW, exp=NOW - 29, nbf=NOW + 29)).user == "ann"


def test_an_audience_may_be_one_of_several() -> None:
    assert accepted(token("ec", now=NOW, aud=["others", AUDIENCE])).user == "ann"


def test_groups_are_those_that_the_configuration_has_for_claims() -> None:
    config = OAuthIssuer(
        issuer=ISSUER,
        audiences=(AUDIENCE,),
        keys_url="https://h",
        user_claim="preferred_username",
        user_prefix="corp:",
        groups_claims=("scope", "realm_access.roles", "https://example.org/teams"),
        groups={"orders:write": ("writers",), "ops": ("operators", "readers"), "eu": ("europe",)},
    )
    claims = accepted(
        token(
            "ec",
            now=NOW,
            preferred_username="ann",
            scope="openid orders:write writers",
            realm_access={"roles": ["ops", 7, None]},
            **{"https://example.org/teams": ["eu"]},
        ),
        config,
    )
    assert claims.user == "corp:ann"
    assert claims.groups == {"writers", "operators", "readers", "europe"}
    assert (
        accepted(token("ec", now=NOW, preferred_username="x", scope={"a": 1}, realm_access=3), config).groups == set()
    )


def test_sizes_are_bounded() -> None:
    assert refusal(token("ec", now=NOW, padding="x" * 9000)) is Reason.TOKEN


def test_what_looks_like_a_token() -> None:
    assert is_token(token("ec"))
    for text in ("", "secret", "eyJ", "eyJhbGciOiJub25lIn0.e30", "eyJh.a.b.c.d", "eyJh. .b", "x.y.z"):
        assert not is_token(text), text


@settings(deadline=None, max_examples=150)
@given(st.from_regex(r"eyJ[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{0,9}", fullmatch=True))
def test_garbage_is_refused_in_words(text: str) -> None:
    refusal(text)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_token_with_any_other_byte_is_refused(data: st.DataObject) -> None:
    good = GOOD
    place = data.draw(st.integers(0, len(good) - 2))  # the last character has bits that stand for nothing
    other = data.draw(st.sampled_from([character for character in "ABCxyz019-_" if character != good[place]]))
    spoiled = good[:place] + other + good[place + 1 :]
    if is_token(spoiled):
        refusal(spoiled)


def test_keys_that_are_no_use_are_left_out_in_words() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    private = {**entry_of("ec-other"), "d": "AAAA", "kid": "p"}
    encryption = {**entry_of("ec-other"), "use": "enc", "kid": "e"}
    broken = {"kty": "RSA", "n": "AQAB", "kid": "b"}
    keys, left_out = read_keys(document("ec", "rsa-short", more=(secret, private, encryption, broken, 7)))
    assert [key.kid for key in keys] == ["ec"]
    assert len(left_out) == 6
    assert any("secret" in said for said in left_out)
    assert any("1024 bits" in said for said in left_out)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": 3}', b'{"keys": []}', b"\xff", b"[" * 100_000])
def test_what_is_no_document_of_keys(data: bytes) -> None:
    with pytest.raises(KeysError):
        read_keys(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": ""},
        {"audiences": ()},
        {"keys_url": ""},
        {"keys_url": "http://login.example.org/keys"},
        {"keys_url": "file:///etc/passwd"},
        {"keys_file": "keys.json"},
        {"algorithms": ()},
        {"user_claim": ""},
    ],
)
def test_settings_that_would_not_be_safe(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        OAuthIssuer(**{"issuer": ISSUER, "audiences": (AUDIENCE,), "keys_url": "https://h/keys", **wrong})
