"""Spark data source for Sluiceway: `spark.read.format("stomp")`. Light to import: neither trio nor pyarrow."""
