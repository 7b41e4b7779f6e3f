"""Configurations of other brokers, read as ones for Sluiceway."""
