"""The pytest plugin, as a project that has Sluiceway installed sees it."""

from __future__ import annotations

from importlib import metadata
from typing import Final

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty project. The plugin comes by its entry point where Sluiceway is installed, else by name."""
    registered = {entry.value for entry in metadata.entry_points(group="pytest11")}
    if "sluiceway.testing" not in registered:
        pytester.plugins.append("sluiceway.testing")
    return pytester


STRANGERS: Final = ("anyio", "hypothesispytest", "timeout", "xdist", "xdist.looponfail")
"""Plugins of others, which take longer to import than a test here takes."""


def run(project: pytest.Pytester, code: str, *arguments: str, with_trio: bool = False) -> pytest.RunResult:
    """In a process of its own, with every warning an error."""
    project.makepyfile(code)
    named = [argument for plugin in project.plugins for argument in ("-p", str(plugin))]
    project.plugins.clear()
    for other in (*STRANGERS, *(() if with_trio else ("trio",))):
        named += ["-p", f"no:{other}"]
    return project.runpytest_subprocess("-W", "error", *named, *arguments, timeout=60)


def test_a_test_gets_a_running_broker_of_its_own(project: pytest.Pytester) -> None:
    """On another port and with another data folder than the next test's; nothing is registered by hand."""
    result = run(
        project,
        """
        import socket
        import sys

        import pytest
        import stomp

        ports = set()

        @pytest.fixture(scope="session", autouse=True)
        def before_the_first_test():
            assert "sluiceway.broker" in sys.modules

        def talk(broker):
            connection = stomp.Connection([(broker.host, broker.port)])
            connection.connect("any", "body", wait=True)
            connection.disconnect()
            assert broker.report()["destinations"] == []
            assert broker.port not in ports
            ports.add(broker.port)

        def test_one(sluiceway_broker, tmp_path):
            talk(sluiceway_broker)
            assert sluiceway_broker.config.broker.data_dir.is_relative_to(tmp_path)
            assert sluiceway_broker.url.startswith("stomp://127.0.0.1:")

        def test_other(sluiceway_broker):
            talk(sluiceway_broker)
        """,
        "-s",
    )
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*broker ready*")
    result.stderr.no_fnmatch_line("*broker ready*")


def test_the_configuration_can_be_overridden(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import attrs
        import pytest
        import stomp
        from sluiceway.config import SecurityConfig

        @pytest.fixture
        def sluiceway_config(sluiceway_config):
            return attrs.evolve(sluiceway_config, security=SecurityConfig(users={"ann": "secret"}, default="allow"))

        def test_login(sluiceway_broker):
            address = [(sluiceway_broker.host, sluiceway_broker.port)]
            connection = stomp.Connection(address)
            connection.connect("ann", "secret", wait=True)
            connection.disconnect()
            with pytest.raises(stomp.exception.ConnectFailedException):
                stomp.Connection(address).connect("ann", "wrong", wait=True)
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_project_that_does_not_use_it_pays_nothing(project: pytest.Pytester) -> None:
    """The broker and trio are imported when the first test asks, not with every run of pytest."""
    result = run(
        project,
        """
        import gc
        import sys

        def test_nothing():
            assert gc.get_freeze_count() == 0
            assert "sluiceway.broker" not in sys.modules
            assert "sluiceway.protocols" not in sys.modules
        """,
    )
    result.assert_outcomes(passed=1)


def test_the_fixtures_explain_themselves(project: pytest.Pytester) -> None:
    result = run(project, "def test_nothing(): pass", "--fixtures")
    result.stdout.fnmatch_lines(["*sluiceway_broker*", "*A running broker*"])


def test_the_marker_sets_what_a_file_could(project: pytest.Pytester) -> None:
    """The closest one counts, and one that is mistyped names the key."""
    result = run(
        project,
        """
        import pytest

        pytestmark = pytest.mark.sluiceway(broker={"name": "of-the-module"}, store={"engine": "memory"})

        def test_of_the_module(sluiceway_broker):
            assert sluiceway_broker.config.broker.name == "of-the-module"

        @pytest.mark.sluiceway(broker={"name": "mine"}, destinations={"/queue/>": {"memory_bytes": "64 KiB"}})
        def test_of_its_own(sluiceway_broker, tmp_path):
            config = sluiceway_broker.config
            assert (config.broker.name, config.store.engine) == ("mine", "memory")
            assert config.destinations[0].settings == {"memory_bytes": 65536}
            assert config.broker.data_dir.is_relative_to(tmp_path)

        @pytest.mark.sluiceway(fake_clock=True)
        def test_with_a_clock(sluiceway_broker):
            sluiceway_broker.advance(3600)
            assert sluiceway_broker.call(lambda broker: broker.uptime_seconds) >= 3600

        @pytest.mark.sluiceway(destinations={"/queue/>": {"cuont_max": 1}})
        def test_mistyped(sluiceway_broker):
            pass
        """,
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*did you mean*count_max*"])


def test_a_shared_broker_is_empty_for_each_test_and_is_one(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import socket

        import pytest
        import stomp

        ports = set()
        left = []

        @pytest.fixture(scope="session")
        def server(sluiceway_session_broker):
            connection = stomp.Connection12([(sluiceway_session_broker.host, sluiceway_session_broker.port)])
            connection.connect(wait=True)
            yield connection
            connection.disconnect()
            for each in left:
                each.close()

        @pytest.mark.parametrize("number", range(3))
        def test_each(server, sluiceway_shared_broker, number):
            broker = sluiceway_shared_broker
            ports.add(broker.port)
            assert len(ports) == 1
            assert broker.report()["destinations"] == []
            assert len(broker.sessions()) == 1
            server.send("/queue/orders", str(number))
            broker.wait_for("/queue/orders", depth_count=1)
            left.append(socket.create_connection((broker.host, broker.port)))
            broker.wait_until(lambda: len(broker.sessions()) == 2)
        """,
    )
    result.assert_outcomes(passed=3)


def test_coroutines_have_a_broker_too(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import asyncio

        async def use(broker):
            await broker.publish("/queue/orders", "42 ducks")
            assert [message.text for message in await broker.messages("/queue/orders")] == ["42 ducks"]

        def test_asyncio(sluiceway_async_broker):
            asyncio.run(use(sluiceway_async_broker))

        async def test_trio(sluiceway_async_broker):
            await use(sluiceway_async_broker)
        """,
        "-o",
        "trio_mode=true",
        with_trio=True,
    )
    result.assert_outcomes(passed=2)


def test_a_failing_test_shows_what_the_broker_holds_and_none_of_our_code(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        def test_wait(sluiceway_broker):
            sluiceway_broker.publish("/queue/orders", "x")
            sluiceway_broker.wait_for("/queue/orders", depth_count=2, timeout_seconds=0.01)

        def test_condition(sluiceway_broker):
            sluiceway_broker.wait_until(lambda: 1 / 0)

        def test_slip(sluiceway_broker):
            sluiceway_broker.wait_for("/queu/orders", depth_count=2)

        def test_own():
            from sluiceway import EmbeddedBroker

            EmbeddedBroker().publish("/queue/orders", "x")
        """,
    )
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            ">*sluiceway_broker.wait_for(*",
            "E*TimeoutError: /queue/orders has depth_count=1, not depth_count=2*",
            "*what the broker holds*",
            "/queue/orders: depth_count=1, *",
            "E*ZeroDivisionError*",
            "E*did you mean /queue/orders*",
            "E*the broker is not started*",
        ]
    )
    result.stdout.no_fnmatch_line("*embedded*.py*")
    result.stdout.no_fnmatch_line("*registry.py*")


def test_all_of_a_traceback_is_there_for_those_who_ask(project: pytest.Pytester) -> None:
    code = """
        def test_wait(sluiceway_broker):
            sluiceway_broker.wait_for("/queue/orders", depth_count=2, timeout_seconds=0.01)
        """
    run(project, code, "--full-trace").stdout.fnmatch_lines(["*embedded.py*"])


def test_a_wrong_marker_fails_the_test_in_a_line(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest

        @pytest.mark.sluiceway(destinations={"/queue/>": {"max_count": 1}})
        def test_words_in_another_order(sluiceway_broker):
            pass

        @pytest.mark.sluiceway({"broker": {}})
        def test_positional(sluiceway_broker):
            pass

        @pytest.mark.sluiceway(fake_clok=True)
        def test_mistyped_clock(sluiceway_broker):
            pass

        @pytest.mark.sluiceway(fake_clock=True)
        def test_without_effect(sluiceway_shared_broker):
            pass
        """,
    )
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(
        [
            "marker sluiceway: *max_count = 1: unknown key; did you mean *count_max?",
            "the marker sluiceway takes tables as keywords*",
            "the marker sluiceway has no fake_clok; did you mean fake_clock?",
            "the marker sluiceway has no effect on the broker that tests share*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_settings_give_a_clock_to_all_brokers(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest

        @pytest.fixture(scope="session")
        def sluiceway_settings():
            return {"fake_clock": True, "broker": {"name": "all"}}

        def test_shared(sluiceway_shared_broker):
            assert sluiceway_shared_broker.config.broker.name == "all"
            sluiceway_shared_broker.advance(60)

        def test_own(sluiceway_broker):
            sluiceway_broker.advance(60)

        @pytest.mark.sluiceway(fake_clock=False)
        def test_real(sluiceway_broker):
            with pytest.raises(RuntimeError, match="clock"):
                sluiceway_broker.advance(60)
        """,
    )
    result.assert_outcomes(passed=3)
