"""pytest plugin: a real broker for each test that asks for one.

    def test_orders(sluiceway_broker):
        sluiceway_broker.publish("/queue/orders", "42 ducks")

Installed with Sluiceway, nothing to register. The broker listens on a free port of 127.0.0.1, has its own data folder,
and is stopped after the test. Light to load: the broker is imported when the first test asks for a broker.

`@pytest.mark.sluiceway(destinations={"/queue/>": {"count_max": 10}})` gives a test other settings, in the tables of a
TOML file; overriding the fixture `sluiceway_settings` gives them to many.

A test that fails shows what its broker holds, and its traceback ends where the test called Sluiceway.
"""

from __future__ import annotations

import difflib
import gc
import sys
from collections.abc import Generator, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

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


MARKER: Final = "sluiceway"
CLOCK: Final = "fake_clock"
_EXAMPLE: Final = '@pytest.mark.sluiceway(destinations={"/queue/>": {"count_max": 10}})'
_SETTINGS: Final = "fixture sluiceway_settings"
_BROKERS: Final = ("sluiceway_broker", "sluiceway_session_broker")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(**tables): settings of sluiceway_broker for this test, as the tables of a TOML file"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import the broker where a test asks for one: before the first test, which is no slower than the others then. The
    modules are kept from later garbage collections, of which pytest does some at the end. No test has run, so what else
    is kept from them are modules of pytest and of the tests.
    """
    asked = any(name in _BROKERS for item in session.items for name in getattr(item, "fixturenames", ()))
    if asked and not session.config.option.collectonly and "sluiceway.embedded" not in sys.modules:
        _import_broker()
        gc.freeze()


def _import_broker() -> None:
    collects = gc.isenabled()
    gc.disable()  # finds nothing in modules that are new, and takes a tenth of the time to import them
    try:
        import sluiceway.client.link
        import sluiceway.embedded  # noqa: F401
    finally:
        if collects:
            gc.enable()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Shorten the traceback, and add what the brokers of the test hold."""
    excinfo = call.excinfo
    if excinfo is None or call.when != "call" or "sluiceway.embedded" not in sys.modules:
        yield
        return
    from sluiceway.testing_failures import sections, shortened

    call.excinfo = shortened(excinfo, item.config)
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.sections += sections(getattr(item, "funcargs", {}).get(name) for name in _BROKERS)


def _config(folder: Path, tables: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> Config:
    """Return the configuration of a broker, or fail the test with what is wrong with the settings."""
    _import_broker()
    import attrs

    from sluiceway.config.errors import ConfigError
    from sluiceway.embedded import embedded_config

    wrong = ""
    try:
        config = embedded_config(*map(_without_clock, tables), sources=sources)
    except ConfigError as error:
        wrong = str(error)
    if wrong:
        _fail(wrong)
    return attrs.evolve(config, broker=attrs.evolve(config.broker, data_dir=folder / "sluiceway-data"))


def _fail(said: str) -> NoReturn:
    """Fail a test without a traceback: the error is in its settings, not in a line of code."""
    pytest.fail(said, pytrace=False)


def _without_clock(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != CLOCK}


def _marks(request: pytest.FixtureRequest) -> list[Mapping[str, Any]]:
    """Return the settings of the markers of a test, those of the closest one last; fail the test for a wrong one."""
    marks = list(request.node.iter_markers(MARKER))
    for mark in marks:
        if mark.args:
            _fail(f"the marker {MARKER} takes tables as keywords: {_EXAMPLE}, not {mark.args[0]!r}")
        for name in mark.kwargs:
            if name != CLOCK and difflib.get_close_matches(name, [CLOCK]):
                _fail(f"the marker {MARKER} has no {name}; did you mean {CLOCK}?")
    return [mark.kwargs for mark in reversed(marks)]


@pytest.fixture(scope="session")
def sluiceway_settings() -> Mapping[str, Any]:
    """Settings of all brokers, as the tables of a TOML file, and `fake_clock`. Override this fixture to change them."""
    return {}


@pytest.fixture
def sluiceway_config(request: pytest.FixtureRequest, tmp_path: Path, sluiceway_settings: Mapping[str, Any]) -> Config:
    """Configuration of `sluiceway_broker`: `sluiceway_settings`, and then the markers `sluiceway` of the test. An
    override may use `attrs.evolve`.
    """
    marks = _marks(request)
    return _config(tmp_path, [sluiceway_settings, *marks], [_SETTINGS, *(f"marker {MARKER}" for _ in marks)])


@pytest.fixture
def sluiceway_broker(
    request: pytest.FixtureRequest, sluiceway_config: Config, sluiceway_settings: Mapping[str, Any]
) -> Iterator[EmbeddedBroker]:
    """A running broker for this test alone: `.host`, `.port`, `.url`; `.publish`, `.messages`, `.subscribe`,
    `.wait_for`, and `.report()` with the contents and the waits.
    """
    from sluiceway.embedded import EmbeddedBroker

    clocks = [table[CLOCK] for table in (sluiceway_settings, *_marks(request)) if CLOCK in table]
    with EmbeddedBroker(sluiceway_config, fake_clock=bool(clocks and clocks[-1])) as broker:
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
    config = _config(tmp_path_factory.mktemp("sluiceway"), [sluiceway_settings], [_SETTINGS])
    from sluiceway.embedded import EmbeddedBroker

    with EmbeddedBroker(config, fake_clock=bool(sluiceway_settings.get(CLOCK))) as broker:
        yield broker


@pytest.fixture
def sluiceway_shared_broker(
    request: pytest.FixtureRequest, sluiceway_session_broker: EmbeddedBroker
) -> Iterator[EmbeddedBroker]:
    """The broker of the session, empty again after the test: connections that the test has opened are ended, messages,
    durable subscriptions and logs removed. Connections from before the test stay.
    """
    if any(mark.name == MARKER for mark in request.node.own_markers) and "sluiceway_broker" not in request.fixturenames:
        _fail(
            f"the marker {MARKER} has no effect on the broker that tests share: take sluiceway_broker, or override the "
            "fixture sluiceway_settings"
        )
    before = sluiceway_session_broker.sessions()
    yield sluiceway_session_broker
    sluiceway_session_broker.reset(keep=before)
