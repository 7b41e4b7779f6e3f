"""A stage with users: `root` may do everything, the others what the test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.security.config import Permission, SecurityConfig
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage

USERS = ("root", "ann", "bob", "eve")
"""Each with a passcode of the same name."""

EVERYTHING = Permission(users=("root",), actions=("*",))
CONNECT = Permission(users=("*",), actions=("connect",))


def allow(users: str, actions: str, *destinations: str) -> Permission:
    """Names separated by blanks."""
    return Permission(users=tuple(users.split()), actions=tuple(actions.split()), destinations=destinations)


def deny(users: str, actions: str, *destinations: str) -> Permission:
    """Names separated by blanks."""
    return Permission(
        users=tuple(users.split()), actions=tuple(actions.split()), destinations=destinations, allow=False
    )


def guarded(*permissions: Permission, **settings: Any) -> SecurityConfig:
    """All users, `root` with all permissions, everybody with that to connect, and these."""
    return SecurityConfig(
        **{"users": {name: name for name in USERS}, "permissions": (EVERYTHING, CONNECT, *permissions), **settings}
    )


class GuardedStage(Stage):
    """A broker with users. Connections are those of `root` unless they say who they are."""

    def __init__(self, *permissions: Permission, settings: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__(security=guarded(*permissions, **(settings or {})), **more)

    async def connect(
        self,
        version: Version = "1.2",
        *,
        name: str | None = None,
        heart_beat: tuple[int, int] = (0, 0),
        **headers: str,
    ) -> Client:
        who = {"login": "root", "passcode": "root", **headers}
        return await super().connect(version, name=name, heart_beat=heart_beat, **who)

    async def as_user(self, user: str, version: Version = "1.2", *, name: str | None = None, **headers: str) -> Client:
        """A connection of this user."""
        who = {"login": user, "passcode": user, **headers}
        return await self.connect(version, name=name, heart_beat=(0, 0), **who)


class GuardedLogStage(GuardedStage, LogStage):
    """The same with logs."""


async def refused(client: Client, needs: str, about: str = "forbidden") -> dict[str, str]:
    """An ERROR that names the permission that is missing; returns its headers."""
    error = await client.expect_error(f"no permission to {needs}")
    assert error.headers["code"] == about, error
    return dict(error.headers)


def replaced(stage: Stage, permissions: Sequence[Permission], **settings: Any) -> None:
    """Other permissions, while connections are there, as a reload does it."""
    import attrs

    config = attrs.evolve(stage.broker.config, security=guarded(*permissions, **settings))
    stage.broker.reload(config)
