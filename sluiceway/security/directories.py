"""Logins by LDAP without blocking the loop: directories are asked in threads, a few at a time for each.

Directories are asked in their order, the next one only if one does not know the login: a wrong passcode is not tried on
others, and while one can't be reached those behind it are not asked, since they may have another user of that name.

Logins that were right are kept for `cache_seconds`, and equal ones that come at once share one check: ten thousand
clients that come back ask once. A login that was not slowed and would be by the time of its turn begins again.

Bound: `connections_max` threads and connections for each directory, each for SECONDS_FACTOR times `timeout_seconds` at
most (a thread that lasts longer keeps its place); CACHE_MAX digests (checks.py).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable
from typing import Final

import trio

from sluiceway.security.checks import RecentChecks
from sluiceway.security.directory import Directory
from sluiceway.security.outside import Accepted, NotAcceptedError, Reason
from sluiceway.security.secrets import PASSCODE_BYTES_MAX, USER_LENGTH_MAX

SECONDS_FACTOR: Final = 4
"""Answers that a login waits for: of the connection, of two binds, of two searches."""


class Directories:
    """All directories: a LoginSource."""

    name = "ldap"

    def __init__(self, directories: Iterable[Directory], clock: Callable[[], float]) -> None:
        self.directories = tuple(directories)
        self._key = os.urandom(32)
        self._checks: RecentChecks[Accepted | NotAcceptedError] = RecentChecks(clock)
        self._slots = {each.config: trio.CapacityLimiter(each.config.connections_max) for each in self.directories}
        self._threads = {each.config: trio.CapacityLimiter(each.config.connections_max) for each in self.directories}

    def account(self, login: str, host: str) -> str:
        """Return the login: passcodes can be guessed."""
        return login

    async def log_in(self, login: str, secret: str, late: Callable[[], bool]) -> Accepted | None:
        """Do `LoginSource.log_in`."""
        if not secret:
            raise NotAcceptedError(Reason.PASSCODE, "the passcode is empty", is_guess=True)
        if (
            len(login) > USER_LENGTH_MAX
            or "\0" in login
            or len(secret.encode("utf-8", "surrogatepass")) > PASSCODE_BYTES_MAX
        ):
            raise NotAcceptedError(
                Reason.NAME,
                f"the login has more than {USER_LENGTH_MAX} characters, or the passcode more than "
                f"{PASSCODE_BYTES_MAX} bytes",
                is_guess=True,
            )
        said = f"{login}\0{secret}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._key, said, hashlib.sha256)
        result = await self._checks.result(digest, lambda: self._ask_all(login, secret, late), self._keep_seconds)
        if isinstance(result, NotAcceptedError):
            raise NotAcceptedError(result.reason, str(result), is_guess=result.is_guess)
        return result

    def _keep_seconds(self, result: Accepted | NotAcceptedError) -> float:
        if isinstance(result, NotAcceptedError):
            return 0.0
        return next(each.config.cache_seconds for each in self.directories if each.config.label == result.source)

    async def _ask_all(self, login: str, secret: str, late: Callable[[], bool]) -> Accepted | NotAcceptedError | None:
        unknown = NotAcceptedError(Reason.UNKNOWN, "no directory has such a user", is_guess=True)
        for directory in self.directories:
            result = await self._ask(directory, login, secret, late)
            if not isinstance(result, NotAcceptedError) or result.reason is not Reason.UNKNOWN:
                return result
            unknown = result
        return unknown

    async def _ask(
        self, directory: Directory, login: str, secret: str, late: Callable[[], bool]
    ) -> Accepted | NotAcceptedError | None:
        config = directory.config
        async with self._slots[config]:
            if late():
                return None
            seconds = SECONDS_FACTOR * config.timeout_seconds
            try:
                with trio.fail_after(seconds):
                    return await trio.to_thread.run_sync(
                        directory.check, login, secret, limiter=self._threads[config], abandon_on_cancel=True
                    )
            except NotAcceptedError as refusal:
                return refusal
            except trio.TooSlowError:
                return NotAcceptedError(Reason.UNAVAILABLE, f"the directory did not answer within {seconds:g} s")
            except (RuntimeError, MemoryError) as error:  # threads are exhausted
                return NotAcceptedError(Reason.UNAVAILABLE, f"no thread for it: {error}")

    def start(self) -> None:
        """Begin nothing: connections are made by the first logins."""

    def close(self) -> None:
        """Close connections."""
        for directory in self.directories:
            directory.close()
