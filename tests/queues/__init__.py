"""Tests of `queues`. `rig.py` is the hand-cranked world they live in: virtual time, a real dispatcher core, fake
consumers and producers.
"""
