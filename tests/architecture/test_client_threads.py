"""Who looks for clients that a test left behind can wait for each of their threads, whatever its state."""

from __future__ import annotations

import threading

from tests.client_threads import client_threads, still_running


class Slow(threading.Thread):
    """One that `start` waits for until it is told to begin."""

    def __init__(self) -> None:
        super().__init__(name="Thread-0 (_receive_loop)", daemon=True)
        self.may_begin = threading.Event()
        self.may_end = threading.Event()

    def _bootstrap(self) -> None:
        assert self.may_begin.wait(20)
        super()._bootstrap()  # type: ignore[misc]

    def run(self) -> None:
        assert self.may_end.wait(20)


def test_one_that_is_being_started_is_seen_and_waited_for() -> None:
    thread = Slow()
    starting = threading.Thread(target=thread.start)
    starting.start()
    while thread not in client_threads():
        pass  # a few steps of the other thread
    assert still_running([thread], 0.05) == [thread.name]
    thread.may_begin.set()
    starting.join(20)
    assert still_running([thread], 0.05) == [thread.name]
    thread.may_end.set()
    assert still_running([thread], 20) == []
    assert thread not in client_threads()
