"""An issuer of tokens for tests: keys, a document of them, tokens that are right and wrong."""

from __future__ import annotations

import functools
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://login.example.org"
AUDIENCE = "sluiceway"


@functools.cache
def key_of(name: str) -> Any:
    """A private key, the same for each use of its name: RSA if it begins with `rsa`."""
    if name.startswith("rsa"):
        return rsa.generate_private_key(public_exponent=65537, key_size=1024 if "short" in name else 2048)
    return ec.generate_private_key(ec.SECP256R1())


def entry_of(name: str) -> dict[str, Any]:
    """The public key as a document has it."""
    public = key_of(name).public_key()
    found = RSAAlgorithm.to_jwk(public) if name.startswith("rsa") else ECAlgorithm.to_jwk(public)
    return {**json.loads(found), "kid": name, "use": "sig"}


def document(*names: str, more: tuple[Any, ...] = ()) -> bytes:
    """A document with these keys."""
    return json.dumps({"keys": [*map(entry_of, names), *more]}).encode()


def token(
    name: str = "ec", *, now: float = 0.0, seconds: float = 60.0, head: dict[str, Any] | None = None, **claims: Any
) -> str:
    """A token of the user ann, or with other claims; None takes one out."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": round(now + seconds), **claims}
    algorithm = "RS256" if name.startswith("rsa") else "ES256"
    return jwt.encode(
        {claim: value for claim, value in said.items() if value is not None},
        key_of(name),
        algorithm,
        headers={"kid": name, **(head or {})},
    )
