"""The Spark source and sinks, with a real Spark."""
