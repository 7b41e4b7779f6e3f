"""Passcodes and their hashes.

A stored hash states its parameters: `scrypt$ln=14$r=8$p=5$SALT$HASH`, salt and hash in base 64 without padding. `ln` is
the binary logarithm of scrypt's N. Any other text is the passcode itself, in plain text.

Parameters of new hashes: 16 MiB and a fifth of a second. OWASP lists this set among those of equal strength; sets with
more memory and less time would let a few logins at once take the memory of messages. The cost protects a stolen file;
the broker itself pays it once per user and `login_cache_seconds`.

Source: RFC 7914; OWASP Password Storage Cheat Sheet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from typing import Final

import attrs

PREFIX: Final = "scrypt$"
MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum memory of a hash; a larger one would let one login exhaust the machine."""
WORK_MAX: Final = 1 << 26
"""Maximum N times r times p: some ten seconds."""
INLINE_WORK_MAX: Final = 1 << 12
"""Work below which no thread is used: less than a millisecond."""
PASSCODE_BYTES_MAX: Final = 1024

_LOG_N, _R, _P = 14, 8, 5
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_FORM: Final = re.compile(r"scrypt\$ln=(\d{1,2})\$r=(\d{1,3})\$p=(\d{1,3})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")
_BAD_IN_USER: Final = re.compile(r"[\x00-\x1f\x7f]")
USER_LENGTH_MAX: Final = 200


class SecretError(ValueError):
    """Invalid stored passcode. The message never shows it."""


def check_user_name(name: str) -> None:
    """Raise ValueError for an invalid user name."""
    if not name or name != name.strip() or len(name) > USER_LENGTH_MAX or _BAD_IN_USER.search(name) or name == "*":
        raise ValueError(
            f"{name[:80]!r} can't be a user: a name has 1 to {USER_LENGTH_MAX} characters, no control characters, no "
            "blanks around it, and is not *"
        )


@attrs.frozen(slots=True, repr=False)
class Hashed:
    """A hash with its parameters."""

    log_n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of a check."""
        return 128 * self.r * (1 << self.log_n)

    @property
    def is_quick(self) -> bool:
        """Whether a check takes negligible time."""
        return (self.r * self.p) << self.log_n <= INLINE_WORK_MAX

    def matches(self, passcode: bytes) -> bool:
        """Return whether this is the passcode. Takes the time of the parameters, whatever the answer; releases the
        GIL.
        """
        return hmac.compare_digest(
            _scrypt(passcode, self.salt, self.log_n, self.r, self.p, len(self.digest)), self.digest
        )

    def __str__(self) -> str:
        return f"{PREFIX}ln={self.log_n}$r={self.r}$p={self.p}${_base64(self.salt)}${_base64(self.digest)}"


@attrs.frozen(slots=True, repr=False)
class Plain:
    """A passcode in plain text."""

    passcode: bytes
    memory_bytes: int = 0
    is_quick: bool = True

    def matches(self, passcode: bytes) -> bool:
        """Return whether this is the passcode, in a time independent of where they differ."""
        return hmac.compare_digest(hashlib.sha256(self.passcode).digest(), hashlib.sha256(passcode).digest())

    def __str__(self) -> str:
        return self.passcode.decode()


Secret = Hashed | Plain


def hashed(passcode: str, *, log_n: int = _LOG_N, r: int = _R, p: int = _P, salt: bytes | None = None) -> Hashed:
    """Return the hash of a new passcode, with its own salt. Takes a fifth of a second by default. Raises ValueError for
    an empty passcode and one that no client could send.
    """
    if not passcode:
        raise ValueError("the passcode is empty")
    data = passcode.encode()
    if len(data) > PASSCODE_BYTES_MAX or b"\n" in data or b"\0" in data or b"\r" in data:
        raise ValueError(f"a passcode is one line of at most {PASSCODE_BYTES_MAX} bytes")
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    return Hashed(log_n, r, p, salt, _scrypt(data, salt, log_n, r, p, _HASH_BYTES))


def parse(text: str) -> Secret:
    """Parse a passcode or hash of the configuration. Raises SecretError."""
    if not text.startswith(PREFIX):
        return Plain(text.encode())
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise SecretError(
            "this begins like a hash (scrypt$), but is not one: make it anew with `sluiceway secret`, and copy all of "
            "it"
        )
    log_n, r, p = int(found[1]), int(found[2]), int(found[3])
    try:
        secret = Hashed(log_n, r, p, _bytes(found[4]), _bytes(found[5]))
    except binascii.Error:
        raise SecretError("salt or hash is no base 64: make it anew with `sluiceway secret`") from None
    if not 1 <= log_n <= 24 or not r or not p or (r * p) << log_n > WORK_MAX or secret.memory_bytes > MEMORY_BYTES_MAX:
        raise SecretError(f"ln={log_n}, r={r}, p={p} takes too much time or memory (at most 256 MiB) for each login")
    if len(secret.salt) < 8 or not 16 <= len(secret.digest) <= 64:
        raise SecretError("salt or hash is too short: make it anew with `sluiceway secret`")
    return secret


STAND_IN: Final = Hashed(_LOG_N, _R, _P, bytes(_SALT_BYTES), bytes(_HASH_BYTES))
"""Hash of no passcode, for checks of logins that do not exist."""


def _scrypt(passcode: bytes, salt: bytes, log_n: int, r: int, p: int, length: int) -> bytes:
    n = 1 << log_n
    return hashlib.scrypt(passcode, salt=salt, n=n, r=r, p=p, maxmem=128 * r * (n + p + 2) + (1 << 20), dklen=length)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
