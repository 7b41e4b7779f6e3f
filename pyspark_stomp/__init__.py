"""Spark data source for Sluiceway: `spark.read.format("stomp")`, found without registration.

Light to import, since Spark imports every `pyspark_*` module to look for data sources: what is named here is loaded on
first use. Without pyarrow it can be imported, and not be used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_stomp.source import StompDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module 'pyspark_stomp' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from pyspark_stomp.source import StompDataSource

    return StompDataSource
