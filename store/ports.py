"""Ports of the store queue: a log for people, and the folder of the engine."""

from __future__ import annotations

from typing import Any, Protocol

from .diskguard import FreeSpace


class Logger(Protocol):
    """Log of the store, for people."""

    def info(self, event: str, **facts: Any) -> Any: ...
    def warning(self, event: str, **facts: Any) -> Any: ...
    def error(self, event: str, **facts: Any) -> Any: ...


class DataFolder(FreeSpace, Protocol):
    """The folder around the engine. Both raise DirectoryError."""

    def attic_put(self, name: str, data: bytes) -> object: ...
