"""Records of a cluster on ZooKeeper for somebody who is no hub: before a hub joins, and for `sluiceway cluster`.

Every call blocks, for some seconds at most.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

from sluiceway.extras import needs
from sluiceway.store.compare_and_set import MetadataFailedError, checked_path

from .zookeeper import SILENT, ZooKeeperSettings, credentials, failed

with needs("cluster", "a cluster on ZooKeeper"):
    from kazoo.client import KazooClient
    from kazoo.exceptions import NodeExistsError, NoNodeError

CONNECT_SECONDS: Final = 10.0
"""Time for one of the servers to answer."""


class ZooKeeperOnce:
    """One short session. Use as a context manager."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._zoo: Any = None

    def __enter__(self) -> Self:
        """Raises MetadataFailedError if no server answers in time."""
        settings = self._settings
        self._zoo = KazooClient(
            hosts=settings.servers,
            timeout=settings.session_seconds,
            **credentials(settings),
            logger=SILENT,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            command_retry={"max_tries": 5, "delay": 0.1, "max_delay": 1.0},
        )
        try:
            self._zoo.start(timeout=CONNECT_SECONDS)
        except Exception:  # noqa: BLE001 - kazoo's time limit is an exception of whatever handler it has
            self._close()
            raise MetadataFailedError(
                f"no ZooKeeper server answers at {settings.servers} within {CONNECT_SECONDS:g} s: look whether "
                "they run and can be reached from here"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._zoo.stop()
        self._zoo.close()

    def read(self, path: str) -> bytes | None:
        """Return the value of a record; None: there is none. Raises MetadataFailedError."""
        try:
            value, _stat = self._zoo.retry(self._zoo.get, self._node(path))
        except NoNodeError:
            return None
        except Exception as error:
            raise failed(error, path, self._settings) from error
        return bytes(value)

    def create(self, path: str, value: bytes) -> bool:
        """Make a record, with the path of the cluster if need be. False: there is one already, perhaps this one, made
        just before the connection was lost. Raises MetadataFailedError.
        """
        try:
            self._zoo.retry(self._zoo.create, self._node(path), value, makepath=True)
        except NodeExistsError:
            return False
        except Exception as error:
            raise failed(error, path, self._settings) from error
        return True

    def _node(self, path: str) -> str:
        return self._settings.root + checked_path(path)
