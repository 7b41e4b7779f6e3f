"""Trails: what became of each message, remembered for a while. "Where is my message?"

    rings      where events are kept, within a budget of bytes
    recording  what a queue tells becomes events
    asking     an answer put together from events, when somebody asks
    locating   where a message is that is still in a queue, whether its trail is known or not

Recording costs one tuple per *batch*: a run that was accepted, a slice that was handed over, a range that was settled,
a block that was moved. Which messages that were is arithmetic: numbers and sequences are dense.
"""

from __future__ import annotations

from .asking import Found, Search, TrailEntry, run
from .locating import Step, Wanted
from .recording import Trails

__all__ = ["Found", "Search", "Step", "TrailEntry", "Trails", "Wanted", "run"]
