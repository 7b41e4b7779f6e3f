"""What a test does with an embedded broker: publish, look, subscribe, wait, reset, and make time pass."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from sluiceway import AsyncEmbeddedBroker, Config, EmbeddedBroker
from sluiceway.client.errors import ClientError, RefusedError
from sluiceway.config import ConfigError
from sluiceway.embedded_messages import Message
from tests.interop.raw_client import RawClient, frame

DEADLINE_SECONDS = 10


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def test_a_published_message_is_there_and_stays() -> None:
    with EmbeddedBroker() as broker:
        broker.publish("/queue/orders", "42 ducks", {"kind": "birds"})
        broker.publish("/queue/orders", b"\x00\xff")
        first, second = broker.messages("/queue/orders")
        assert (first.text, first.headers["kind"], first.destination) == ("42 ducks", "birds", "/queue/orders")
        assert first.message_id != second.message_id
        assert second.body == b"\x00\xff"
        assert len(broker.messages("/queue/orders")) == 2
        assert broker.destination("/queue/orders")["depth_count"] == 2
        assert texts(broker.messages("/queue/orders", selector="kind = 'birds'")) == ["42 ducks"]


def test_calls_leave_no_connection_behind() -> None:
    with EmbeddedBroker() as broker:
        broker.publish("/queue/orders", "x")
        broker.messages("/queue/orders")
        assert broker.report()["connections"] == []


def test_a_queue_that_nobody_used_is_empty() -> None:
    with EmbeddedBroker() as broker:
        assert broker.messages("/queue/none") == []
        assert broker.destination("/queue/other") == {}
        assert broker.purge("/queue/other") == 0


@pytest.mark.parametrize(("name", "instead"), [("/topic/prices", "subscribe before"), ("/log/prices", "Consumer")])
def test_messages_that_cannot_be_browsed_are_refused_with_what_to_do_instead(name: str, instead: str) -> None:
    with EmbeddedBroker() as broker, pytest.raises(RefusedError, match=instead):
        broker.messages(name)


def test_records_of_a_log_are_received() -> None:
    """As the error for browsing says."""
    with EmbeddedBroker() as broker:
        broker.publish("/log/prices", "42")
        with broker.subscribe("/log/prices", {"from": "earliest"}) as records:
            assert records.receive().text == "42"


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        ({"ducks": 42}, {}, "the body of a message is str or bytes, not dict: .*; json.dumps makes text of it"),
        (42, {}, "the body of a message is str or bytes, not int: 42$"),
        ("x", {"persistent": True}, "write 'persistent': 'true'"),
        ("x", {"number": 7}, "write 'number': '7'"),
    ],
)
def test_what_is_not_text_is_refused_in_words(body: Any, headers: Any, said: str) -> None:
    with EmbeddedBroker() as broker, pytest.raises(TypeError, match=said):
        broker.publish("/queue/orders", body, headers)


def test_a_message_can_be_refused_and_comes_again() -> None:
    with EmbeddedBroker() as broker:
        broker.publish("/queue/orders", "42 ducks")
        with broker.subscribe("/queue/orders") as orders:
            orders.nack(orders.receive(acknowledge=False))
            again = orders.receive(acknowledge=False)
            assert (again.text, again.headers["redelivered"]) == ("42 ducks", "true")
            orders.nack(again, requeue=False)
        [dead] = broker.messages("/queue/dead-letters")
        assert (dead.text, dead.headers["dead-letter-destination"]) == ("42 ducks", "/queue/orders")
        assert broker.destination("/queue/orders")["depth_count"] == 0


def test_a_loop_takes_message_after_message_until_it_is_left() -> None:
    with EmbeddedBroker() as broker:
        for number in range(5):
            broker.publish("/queue/orders", str(number))
        with broker.subscribe("/queue/orders") as orders:
            taken = []
            for message in orders:
                taken.append(message.text)
                if len(taken) == 2:
                    break
            broker.wait_for("/queue/orders", settled_count=2)
            held = next(orders.iterate(acknowledge=False))
            assert [*taken, held.text, next(iter(orders)).text] == ["0", "1", "2", "3"]
        assert texts(broker.messages("/queue/orders")) == ["2", "4"]


def test_a_loop_says_when_nothing_comes() -> None:
    """A loop that ended without a word would let a test pass that has seen too little."""
    said = r"no message of /queue/orders came within 0\.05 s"
    with (
        EmbeddedBroker() as broker,
        broker.subscribe("/queue/orders") as orders,
        pytest.raises(TimeoutError, match=said),
    ):
        list(orders.iterate(0.05))


def test_a_worker_that_waits_without_end_hears_of_the_end_of_the_broker() -> None:
    broker = EmbeddedBroker().start()
    taken: list[str] = []
    ended: list[Exception] = []

    def work() -> None:
        try:
            with broker.subscribe("/queue/orders") as orders:
                for message in orders.iterate(None):
                    taken.append(message.text)
        except ClientError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    try:
        thread.start()
        broker.publish("/queue/orders", "x")
        broker.wait_until(lambda: taken == ["x"])
    finally:
        broker.stop()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    [error] = ended
    assert isinstance(error, ClientError), error


@pytest.mark.parametrize("body", ["42 ducks", b"42 ducks"])
def test_a_body_in_the_place_of_the_destination_is_refused_with_the_right_order(body: Any) -> None:
    with EmbeddedBroker() as broker:
        with pytest.raises((TypeError, ValueError), match=r"comes first: publish\('/queue/orders', b?'42 ducks'\)"):
            broker.publish(body, "/queue/orders")
        assert broker.report()["destinations"] == []


def test_a_destination_that_is_not_text_is_refused() -> None:
    with EmbeddedBroker() as broker, pytest.raises(TypeError, match="the destination of a message is str, not bytes"):
        broker.publish(b"/queue/orders", "42 ducks")  # type: ignore[arg-type]


def test_a_message_is_persistent_by_a_word() -> None:
    with EmbeddedBroker(store={"engine": "memory"}) as broker:
        broker.publish("/queue/orders", "42 ducks", {"kind": "birds"}, persistent=True)
        [order] = broker.messages("/queue/orders")
        assert (order.headers["persistent"], order.headers["kind"]) == ("true", "birds")


def test_a_subscription_without_a_block_says_what_is_missing() -> None:
    with EmbeddedBroker() as broker:
        orders: Any = broker.subscribe("/queue/orders")
        with pytest.raises(
            AttributeError, match=r'no receive outside of a block: with broker.subscribe\("/queue/orders"\)'
        ):
            orders.receive()
        with pytest.raises(TypeError, match="no loop outside of a block"):
            list(orders)
        assert broker.report()["connections"] == []


def test_a_name_of_a_destination_can_be_the_body() -> None:
    with EmbeddedBroker() as broker:
        broker.publish("/queue/names", "/queue/orders")
        broker.publish("names", "/orders")
        assert texts(broker.messages("names")) == ["/queue/orders", "/orders"]


def test_a_message_that_is_not_acknowledged_goes_back_at_the_end() -> None:
    with EmbeddedBroker() as broker:
        for number in range(3):
            broker.publish("/queue/orders", str(number))
        with broker.subscribe("/queue/orders") as orders:
            kept, settled = orders.receive(acknowledge=False), orders.receive(acknowledge=False)
            orders.acknowledge(settled)
            assert broker.destination("/queue/orders")["settled_count"] == 1
            assert (kept.text, settled.text, orders.receive(acknowledge=False).text) == ("0", "1", "2")
        assert texts(broker.messages("/queue/orders")) == ["0", "2"]


def test_a_subscriber_misses_nothing_from_its_beginning_on() -> None:
    with EmbeddedBroker() as broker:
        with broker.subscribe("/topic/prices") as prices:
            broker.publish("/topic/prices", "42")
            assert prices.receive().text == "42"
            with pytest.raises(TimeoutError, match="no message of /topic/prices"):
                prices.receive(timeout_seconds=0.01)
        broker.publish("/queue/orders", "a")
        with broker.subscribe("/queue/orders", {"prefetch-count": "1"}) as orders:
            assert orders.receive().text == "a"
            assert broker.destination("/queue/orders")["depth_count"] == 0


def test_settings_are_written_as_in_a_file() -> None:
    with EmbeddedBroker(
        broker={"memory_bytes": "64 MiB"},
        destinations={"/queue/>": {"memory_bytes": "64 KiB", "count_max": 2, "full": "drop_oldest"}},
        store={"engine": "memory"},
    ) as broker:
        for number in range(4):
            broker.publish("/queue/orders", str(number))
        assert texts(broker.messages("/queue/orders")) == ["2", "3"]
        assert broker.config.broker.memory_bytes == 64 << 20
        assert broker.report()["store"]["state"] == "ok"
        assert broker.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("tables", "about"),
    [
        ({"destinations": {"/queue/>": {"cuont_max": 2}}}, "did you mean destinations.0.count_max|count_max"),
        ({"brokr": {}}, "did you mean broker"),
        ({"broker": {"memory_bytes": "64 KiBi"}}, "broker.memory_bytes"),
    ],
)
def test_a_wrong_setting_is_named(tables: dict[str, Any], about: str) -> None:
    with pytest.raises(ConfigError, match=about):
        EmbeddedBroker(**tables)


def test_a_config_and_tables_are_not_mixed() -> None:
    with pytest.raises(TypeError, match="not both"):
        EmbeddedBroker(Config(), broker={"name": "x"})


def test_users_count_for_calls_too() -> None:
    users = {"users": {"ann": "secret"}, "default": "allow"}
    with EmbeddedBroker(security=users) as broker:
        with pytest.raises(RefusedError):
            broker.publish("/queue/orders", "x")
        broker.publish("/queue/orders", "x", login="ann", passcode="secret")
        assert len(broker.messages("/queue/orders", login="ann", passcode="secret")) == 1


def test_a_destination_that_takes_nothing_ends_the_wait() -> None:
    full = {"/queue/>": {"count_max": 1, "full": "block"}}
    with EmbeddedBroker(destinations=full) as broker:
        with pytest.raises(
            TimeoutError,
            match=r"/queue/orders did not take the message.*: connection embedding program waits on queue",
        ):
            for _ in range(10):
                broker.publish("/queue/orders", "x", timeout_seconds=0.5)
        broker.purge("/queue/orders")


def test_waiting_ends_when_it_is_so_and_says_how_it_is_if_not() -> None:
    with EmbeddedBroker() as broker:
        broker.publish("/queue/orders", "x")
        broker.wait_for("/queue/orders", depth_count=1, dropped_count=0)
        broker.wait_for("/queue/none", depth_count=0)
        assert broker.wait_until(lambda: broker.messages("/queue/orders"))[0].text == "x"
        with pytest.raises(TimeoutError, match="/queue/orders has depth_count=1, not depth_count=2"):
            broker.wait_for("/queue/orders", depth_count=2, timeout_seconds=0.02)
        with pytest.raises(TimeoutError, match="the condition was not met"):
            broker.wait_until(lambda: False, timeout_seconds=0.02)
        for name in ("/queue/orders", "/queue/none"):
            with pytest.raises(KeyError, match="did you mean depth_count"):
                broker.wait_for(name, dept_count=0)


def test_a_destination_that_does_not_exist_is_called_so() -> None:
    with EmbeddedBroker() as broker:
        broker.publish("/queue/orders", "x")
        with pytest.raises(TimeoutError, match="no such destination: the broker has /queue/orders"):
            broker.wait_for("/queue/order", depth_count=1, timeout_seconds=0.02)
        with pytest.raises(KeyError, match="no destination /queue/order; the broker has /queue/orders"):
            broker.destination("/queue/order")["depth_count"]
        for ask in (broker.wait_for, broker.destination):
            with pytest.raises(ValueError, match="did you mean /queue/orders"):
                ask("/queu/orders")


def test_a_bare_name_is_that_of_a_queue_in_every_call() -> None:
    with EmbeddedBroker() as broker:
        broker.publish("orders", "x")
        assert broker.destination("orders")["name"] == "/queue/orders"
        with pytest.raises(TimeoutError, match="orders has depth_count=1"):
            broker.wait_for("orders", depth_count=0, timeout_seconds=0.02)
        assert broker.purge("orders") == 1


def test_a_reset_broker_is_as_new_but_for_connections_that_are_kept(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(store={"engine": "memory"}, broker={"data_dir": tmp_path}) as broker,
        RawClient((broker.host, broker.port)) as kept,
    ):
        kept.connect()
        kept.send(frame("SUBSCRIBE", id="1", destination="/queue/kept", ack="client", receipt="s"))
        kept.expect("RECEIPT")
        before = broker.sessions()
        with RawClient((broker.host, broker.port)) as other:
            other.connect(**{"client-id": "web"})
            other.send(frame("SUBSCRIBE", id="1", destination="/topic/t", receipt="s", durable="true"))
            other.expect("RECEIPT")
            broker.publish("/queue/orders", "x", {"persistent": "true"})
            broker.publish("/queue/kept", "x")
            broker.publish("/topic/t", "x", {"persistent": "true"})
            broker.reset(keep=before)
            assert broker.sessions() == before
        report = broker.report()
        assert [row["name"] for row in report["destinations"]] == ["/queue/kept"]
        assert report["durables"] == []
        kept.send(frame("SEND", b"y", destination="/queue/orders", receipt="r"))
        kept.expect("MESSAGE")
        kept.expect("RECEIPT")
        assert texts(broker.messages("/queue/orders")) == ["y"]


def test_an_hour_passes_at_once_for_a_fake_clock() -> None:
    with EmbeddedBroker(fake_clock=True) as broker:
        now_ms = broker.call(lambda inner: inner.now_ms())
        broker.publish("/queue/orders", "old", {"expires": str(now_ms + 1_800_000)})
        broker.publish("/queue/orders", "new", {"expires": str(now_ms + 7_200_000)})
        broker.publish("/queue/later", "x", {"delay": "600000"})
        broker.advance(60)
        assert texts(broker.messages("/queue/orders")) == ["old", "new"]
        broker.advance(3600)
        broker.wait_for("/queue/orders", depth_count=1, expired_count=1)
        broker.wait_for("/queue/later", depth_count=1, delayed_count=0)
        assert broker.call(lambda inner: inner.now_ms()) >= now_ms + 3_660_000


def test_a_real_clock_is_not_advanced() -> None:
    with EmbeddedBroker() as broker, pytest.raises(RuntimeError, match="fake_clock=True"):
        broker.advance(1)


async def use_from_a_coroutine() -> None:
    async with AsyncEmbeddedBroker(destinations={"/queue/>": {"count_max": 5}}) as broker:
        assert broker.url == f"stomp://{broker.host}:{broker.port}"
        async with broker.subscribe("/topic/prices") as prices:
            await broker.publish("/topic/prices", "42")
            assert (await prices.receive()).text == "42"
            await broker.publish("/topic/prices", "43")
            await broker.publish("/topic/prices", "44")
            taken = []
            async for price in prices:
                taken.append(price.text)
                if len(taken) == 2:
                    break
            assert taken == ["43", "44"]
            with pytest.raises(TimeoutError):
                await anext(prices.iterate(0.01, acknowledge=False))
        orders: Any = broker.subscribe("/queue/orders")
        with pytest.raises(AttributeError, match=r'no receive .*: async with broker.subscribe\("/queue/orders"\)'):
            await orders.receive()
        with pytest.raises(TypeError, match="nothing to await outside of a block"):
            await orders
        with pytest.raises(TypeError, match="no loop outside of a block"):
            async for _message in orders:
                raise AssertionError("it is not subscribed")
        await broker.publish("/queue/orders", "x")
        await broker.wait_for("/queue/orders", depth_count=1)
        assert await broker.wait_until(lambda: True)
        assert texts(await broker.messages("/queue/orders")) == ["x"]
        assert await broker.purge("/queue/orders") == 1
        assert (await broker.destination("/queue/orders"))["depth_count"] == 0
        await broker.reset()
        assert (await broker.report())["destinations"] == []


def test_it_can_be_used_from_asyncio() -> None:
    asyncio.run(asyncio.wait_for(use_from_a_coroutine(), DEADLINE_SECONDS))


def test_it_can_be_used_from_trio() -> None:
    async def main() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            await use_from_a_coroutine()

    trio.run(main)


def test_a_cancelled_receive_takes_no_message_in_asyncio() -> None:
    async def main() -> None:
        async with AsyncEmbeddedBroker() as broker, broker.subscribe("/queue/orders") as orders:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(orders.receive(), 0.01)
            await broker.publish("/queue/orders", "x")
            assert (await orders.receive()).text == "x"

    asyncio.run(asyncio.wait_for(main(), DEADLINE_SECONDS))


def test_a_cancelled_receive_takes_no_message_and_ends_at_once_in_trio() -> None:
    async def main() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with AsyncEmbeddedBroker() as broker:
                with trio.move_on_after(0.01):
                    async with broker.subscribe("/queue/orders") as orders:
                        await orders.receive(timeout_seconds=2 * DEADLINE_SECONDS)
                await broker.wait_until(lambda: broker.blocking.report()["connections"] == [])
                async with broker.subscribe("/queue/orders") as orders:
                    with trio.move_on_after(0.01):
                        await orders.receive(timeout_seconds=2 * DEADLINE_SECONDS)
                    with trio.move_on_after(0.01):
                        async for _message in orders.iterate(None):
                            raise AssertionError("there is none")
                    with trio.move_on_after(0.01):
                        await broker.wait_for("/queue/orders", depth_count=1, timeout_seconds=2 * DEADLINE_SECONDS)
                    await broker.publish("/queue/orders", "x")
                    message = await orders.receive(acknowledge=False)
                    await orders.nack(message)
                    await orders.acknowledge(await orders.receive(acknowledge=False))

    trio.run(main)
