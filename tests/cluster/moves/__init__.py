"""Brokers whose shards move."""
