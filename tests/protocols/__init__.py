"""Tests of `protocols`: the sans-I/O machine first, then the pieces of a session."""
