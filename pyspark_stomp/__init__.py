"""Spark data source for Sluiceway: `spark.read.format("stomp")`, `spark.readStream`, `df.write`, `df.writeStream`.

    import pyspark_stomp

    spark = pyspark_stomp.session()     # on this machine; elsewhere: pyspark_stomp.register(spark), or nothing at all
    spark.read.format("stomp").option("brokers", "127.0.0.1:61613").load("/log/orders").show()

Spark looks for data sources in every top-level module called `pyspark_...`, and imports them all for it. So this is
light to import and can't fail: modules that need pyspark or pyarrow are loaded on first use.

    source      what Spark calls: `DefaultSource`         options     all that `.option()` takes
    logs        readers of logs, batch and streaming      claims      readers of queues
    sink        writers, batch and streaming              schema      columns, and batches of a log as Arrow
    wire        one connection to one broker
    local       a Spark session on this machine           java        a Java for it

docs/spark.md tells how it is used and what is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_stomp.local import register, session
    from pyspark_stomp.source import StompDataSource as DefaultSource

__all__ = ["DefaultSource", "register", "session"]


def __getattr__(name: str) -> Any:
    """Load a name of `__all__` on first use."""
    if name == "DefaultSource":
        from pyspark_stomp.source import StompDataSource

        return StompDataSource
    if name in __all__:
        from pyspark_stomp import local

        return getattr(local, name)
    raise AttributeError(f"module 'pyspark_stomp' has no attribute {name!r}; it offers {', '.join(__all__)}")
