"""Trails: the recent history of each message, to answer "Where is my message?"
    rings      storage of events, within a budget of bytes
    recording  from notifications of a queue to events
    asking     answers put together from events on request
    locating   search for a message in the queues, with or without a trail

Recording costs one tuple per *batch*: an accepted run, a delivered slice, a settled range, a moved block. The messages
of a batch are computed: numbers and sequences are dense.
"""

from __future__ import annotations

from .asking import Found, TrailEntry, TrailSearch, run
from .locating import Step, Wanted
from .recording import Trails

__all__ = ["Found", "Step", "TrailEntry", "TrailSearch", "Trails", "Wanted", "run"]
