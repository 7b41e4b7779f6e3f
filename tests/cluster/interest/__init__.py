"""Tests of how hubs agree on interest."""
