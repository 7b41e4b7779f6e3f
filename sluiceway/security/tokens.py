"""Bearer tokens: signed JWTs (RFC 7519) to a user and its groups. Pure: keys and time are arguments.

Checked, in this order: size, form, issuer, algorithm (from the configuration, never from the token), key, signature,
then the claims `aud`, `exp` (which has to be there), `nbf` and the name of the user. Nothing of a token is believed
before its signature but which issuer and key it names.

PyJWT verifies signatures; claims are checked here, with the broker's clock. Source: RFC 8725, best practices for JWT.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from sluiceway.extras import needs
from sluiceway.security.outside import NotAcceptedError, Reason
from sluiceway.security.outside_config import OAuthIssuer
from sluiceway.security.secrets import check_user_name

with needs("oauth", "a login by token"):
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192
"""A larger key would make one login hold the loop."""
VALUES_MAX: Final = 1000
"""Values of a claim that are looked at."""
_SHOWN: Final = 80
_FORM: Final = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_PRIVATE: Final = ("d", "p", "q", "k")

PublicKey = Any
"""A public key of `cryptography`."""


class KeysError(ValueError):
    """A document that is no set of public keys, or has none that can be used."""


@attrs.frozen(slots=True)
class Key:
    """A public key of an issuer."""

    kid: str | None
    algorithm: str | None
    """The only algorithm that it is for; None: all that fit."""
    public: PublicKey = attrs.field(eq=False, repr=False)

    def fits(self, algorithm: str) -> bool:
        """Return whether signatures of this algorithm are made with such a key."""
        if self.algorithm not in (None, algorithm):
            return False
        if algorithm in _CURVES:
            return isinstance(self.public, ec.EllipticCurvePublicKey) and self.public.curve.name == _CURVES[algorithm]
        if algorithm == "EdDSA":
            return isinstance(self.public, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey)
        return isinstance(self.public, rsa.RSAPublicKey)


@attrs.frozen(slots=True)
class Claims:
    """The contents of a good token."""

    user: str
    groups: frozenset[str]
    ends_at: float
    """End, in seconds since the epoch, with the leeway."""


def is_token(text: str) -> bool:
    """Return whether a passcode has the form of a token."""
    return text.startswith("eyJ") and _FORM.fullmatch(text) is not None


def read_keys(data: bytes) -> tuple[tuple[Key, ...], tuple[str, ...]]:
    """Return the keys of a JWKS document, and in words those that are left out. Raises KeysError."""
    try:
        document = json.loads(data)
        entries = document["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise KeysError('it is no set of keys (JSON with a list "keys")') from None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise KeysError(f'"keys" is no list of at most {KEYS_MAX} keys')
    keys: list[Key] = []
    left_out: list[str] = []
    for number, entry in enumerate(entries, 1):
        kid = entry.get("kid") if isinstance(entry, dict) else None
        name = f"key {number}" if not isinstance(kid, str) else f"key {kid[:_SHOWN]!r}"
        try:
            keys.append(_key(entry))
        except KeysError as error:
            left_out.append(f"{name}: {error}")
    if not keys:
        raise KeysError(f"it has no public key that can be used{''.join(f'; {each}' for each in left_out[:3])}")
    return tuple(keys), tuple(left_out)


def _key(entry: object) -> Key:
    if not isinstance(entry, dict):
        raise KeysError("is no table")
    if entry.get("kty") == "oct" or any(name in entry for name in _PRIVATE):
        raise KeysError("is secret: only public keys belong there")
    if entry.get("use") not in (None, "sig"):
        raise KeysError("is not for signatures")
    algorithm, kid = entry.get("alg"), entry.get("kid")
    if not isinstance(kid, str | None) or not isinstance(algorithm, str | None):
        raise KeysError("has a kid or alg that is no text")
    try:
        public = jwt.PyJWK.from_dict(entry).key
    except (jwt.exceptions.PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise KeysError(f"can't be read ({str(error)[:_SHOWN]})") from None
    if isinstance(public, rsa.RSAPublicKey) and not RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
        raise KeysError(f"is an RSA key of {public.key_size} bits (allowed: {RSA_BITS_MIN} to {RSA_BITS_MAX})")
    return Key(kid, algorithm, public)


@attrs.frozen(slots=True)
class Unverified:
    """Claims of a token about itself, not to be believed yet."""

    token: str = attrs.field(repr=False)
    algorithm: str
    kid: str | None
    issuer: str
    claims: Mapping[str, Any] = attrs.field(repr=False)

    @classmethod
    def of(cls, token: str, bytes_max: int) -> Unverified:
        """Take a token apart. Raises NotAcceptedError."""
        if len(token) > bytes_max:
            raise NotAcceptedError(
                Reason.TOKEN,
                f"the token has {len(token)} bytes, more than token_bytes_max ({bytes_max})",
                is_guess=True,
            )
        head_text, claims_text, _signature = token.split(".")
        head, claims = _json(head_text), _json(claims_text)
        algorithm, kid, issuer = head.get("alg"), head.get("kid"), claims.get("iss")
        if not isinstance(algorithm, str) or not isinstance(kid, str | None):
            raise NotAcceptedError(Reason.TOKEN, "the token has no alg, or a kid that is no text", is_guess=True)
        if "crit" in head or head.get("b64", True) is not True:
            raise NotAcceptedError(Reason.TOKEN, "the token needs extensions (crit, b64) that are not known here")
        if not isinstance(issuer, str):
            raise NotAcceptedError(Reason.ISSUER, "the token has no iss", is_guess=True)
        return cls(token, algorithm, kid, issuer, claims)

    def check_algorithm(self, config: OAuthIssuer) -> None:
        """Raise NotAcceptedError for an algorithm that the configuration does not have."""
        if self.algorithm not in config.algorithms:
            raise NotAcceptedError(
                Reason.SIGNATURE,
                f"the token is signed by {self.algorithm[:_SHOWN]!r}; algorithms: {', '.join(config.algorithms)}",
                is_guess=True,
            )

    def key_of(self, keys: Iterable[Key]) -> Key | None:
        """Return the key that the token names; without a name the only one that fits. None: there is none."""
        fitting = [key for key in keys if key.fits(self.algorithm)]
        if self.kid is not None:
            return next((key for key in fitting if key.kid == self.kid), None)
        return fitting[0] if len(fitting) == 1 else None

    def verified(self, key: Key, config: OAuthIssuer, now: float) -> Claims:
        """Return the claims, checked. `now`: seconds since the epoch. Raises NotAcceptedError."""
        try:
            jwt.PyJWS().decode_complete(self.token, key.public, algorithms=[self.algorithm])
        except (jwt.exceptions.PyJWTError, ValueError, TypeError):
            raise NotAcceptedError(
                Reason.SIGNATURE, f"the signature of the token is not that of key {self.kid!r}", is_guess=True
            ) from None
        self._check_audience(config)
        ends_at = self._check_times(config, now)
        return Claims(self._user(config), self._groups(config), ends_at)

    def _check_audience(self, config: OAuthIssuer) -> None:
        audience = self.claims.get("aud")
        names = audience if isinstance(audience, list) else [audience]
        if not any(name in config.audiences for name in names if isinstance(name, str)):
            raise NotAcceptedError(
                Reason.AUDIENCE,
                f"the token is for {_shown(audience)}, not for this broker ({', '.join(config.audiences)})",
            )

    def _check_times(self, config: OAuthIssuer, now: float) -> float:
        exp: Any = self.claims.get("exp")
        nbf: Any = self.claims.get("nbf")
        if not _is_time(exp):
            raise NotAcceptedError(Reason.EXPIRED, "the token has no end (exp)")
        ends_at = float(exp) + config.leeway_seconds
        if now >= ends_at:
            raise NotAcceptedError(
                Reason.EXPIRED, f"the token expired {now - float(exp):.0f} s ago: the client needs a new one"
            )
        if nbf is not None and not _is_time(nbf):
            raise NotAcceptedError(Reason.NOT_YET, "the token has a beginning (nbf) that is no time")
        if nbf is not None and float(nbf) - config.leeway_seconds > now:
            raise NotAcceptedError(
                Reason.NOT_YET, f"the token begins in {float(nbf) - now:.0f} s: compare the clocks of issuer and broker"
            )
        return ends_at

    def _user(self, config: OAuthIssuer) -> str:
        name = _claim(self.claims, config.user_claim)
        if not isinstance(name, str):
            raise NotAcceptedError(Reason.NAME, f"the token has no text in {config.user_claim} (user_claim)")
        user = config.user_prefix + name
        try:
            check_user_name(user)
        except ValueError as error:
            raise NotAcceptedError(Reason.NAME, str(error)) from None
        return user

    def _groups(self, config: OAuthIssuer) -> frozenset[str]:
        found: set[str] = set()
        for path in config.groups_claims:
            value = _claim(self.claims, path)
            values = value.split(" ")[:VALUES_MAX] if isinstance(value, str) else value
            for each in values[:VALUES_MAX] if isinstance(values, list) else ():
                if isinstance(each, str):
                    found.update(config.groups.get(each, ()))
        return frozenset(found)


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name (which may have dots and colons, as `https://example.org/roles`), else by its path."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        found = None
    if not isinstance(found, dict):
        raise NotAcceptedError(Reason.TOKEN, "the token is broken: a part of it is no JSON", is_guess=True)
    return found


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN]
