"""Tests of links between hubs, and of sessions that go through one."""
