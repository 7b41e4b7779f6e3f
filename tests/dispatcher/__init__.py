"""Tests of `dispatcher`: the pure pieces first (ready lists, timers, turns), then the trio task."""
