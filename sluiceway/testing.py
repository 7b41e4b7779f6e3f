"""pytest plugin: a real broker for each test that asks for one.

    def test_orders(sluiceway_broker):
        sluiceway_broker.publish("/queue/orders", "42 ducks")

Installed with Sluiceway, nothing to register. The broker listens on a free port of 127.0.0.1, has its own data folder,
and is stopped after the test. Light to load: the broker is imported when the first test asks for a broker.

`@pytest.mark.sluiceway(destinations={"/queue/>": {"count_max": 10}})` gives a test other settings, in the tables of a
TOML file; overriding the fixture `sluiceway_settings` gives them to many.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluiceway.config import Config
    from sluiceway.embedded import EmbeddedBroker
    from sluiceway.embedded_async import AsyncEmbeddedBroker


class _AsWritten:
    """Finds the modules of Sluiceway before pytest does, which rewrites the asserts of every module of a distribution
    that has a plugin: for 300 modules that takes seconds in each new environment.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("sluiceway.") else None


sys.meta_path.insert(0, _AsWritten)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sluiceway(**tables): settings of sluiceway_broker for this test, as the tables of a TOML file"
    )


def _config(folder: Path, *tables: Mapping[str, Any]) -> Config:
    import attrs

    collects = gc.isenabled()
    gc.disable()  # finds nothing in modules that are new, and takes a tenth of the time to import them
    try:
        from sluiceway.embedded import embedded_config
    finally:
        if collects:
            gc.enable()
    config = embedded_config(*tables)
    return attrs.evolve(config, broker=attrs.evolve(config.broker, data_dir=folder / "sluiceway-data"))


@pytest.fixture(scope="session")
def sluiceway_settings() -> Mapping[str, Any]:
    """Settings of all brokers, as the tables of a TOML file. Override this fixture to change them."""
    return {}


@pytest.fixture
def sluiceway_config(request: pytest.FixtureRequest, tmp_path: Path, sluiceway_settings: Mapping[str, Any]) -> Config:
    """Configuration of `sluiceway_broker`: `sluiceway_settings`, and then the markers `sluiceway` of the test. An
    override may use `attrs.evolve`.
    """
    marks = [dict(mark.kwargs) for mark in reversed(list(request.node.iter_markers("sluiceway")))]  # the closest last
    for mark in marks:
        mark.pop("fake_clock", None)
    return _config(tmp_path, sluiceway_settings, *marks)


@pytest.fixture
def sluiceway_broker(request: pytest.FixtureRequest, sluiceway_config: Config) -> Iterator[EmbeddedBroker]:
    """A running broker for this test alone: `.host`, `.port`, `.url`; `.publish`, `.messages`, `.subscribe`,
    `.wait_for`, and `.report()` with the contents and the waits.
    """
    from sluiceway.embedded import EmbeddedBroker

    mark = request.node.get_closest_marker("sluiceway")
    fake_clock = mark is not None and bool(mark.kwargs.get("fake_clock"))
    with EmbeddedBroker(sluiceway_config, fake_clock=fake_clock) as broker:
        yield broker


@pytest.fixture
def sluiceway_async_broker(sluiceway_broker: EmbeddedBroker) -> AsyncEmbeddedBroker:
    """The broker of `sluiceway_broker` for a coroutine of asyncio or trio: `await broker.publish(...)`."""
    from sluiceway.embedded_async import AsyncEmbeddedBroker

    return AsyncEmbeddedBroker(sluiceway_broker)


@pytest.fixture(scope="session")
def sluiceway_session_broker(
    tmp_path_factory: pytest.TempPathFactory, sluiceway_settings: Mapping[str, Any]
) -> Iterator[EmbeddedBroker]:
    """A broker for the whole session, for what a session starts once. Tests take `sluiceway_shared_broker`."""
    from sluiceway.embedded import EmbeddedBroker

    with EmbeddedBroker(_config(tmp_path_factory.mktemp("sluiceway"), sluiceway_settings)) as broker:
        yield broker


@pytest.fixture
def sluiceway_shared_broker(sluiceway_session_broker: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    """The broker of the session, empty again after the test: connections that the test has opened are ended, messages,
    durable subscriptions and logs removed. Connections from before the test stay.
    """
    before = sluiceway_session_broker.sessions()
    yield sluiceway_session_broker
    sluiceway_session_broker.reset(keep=before)
