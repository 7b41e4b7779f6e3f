"""Scenarios of Spark, with sources and sinks that show what Spark itself carries."""
