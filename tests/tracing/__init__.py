"""Tests of sluiceway.tracing; spans of whole brokers are in scenarios/test_tracing.py."""
