"""The Structured Streaming job: from the log of events to Parquet and to hourly counts, from the queue to Parquet.

    python -m examples.pipeline.stream --brokers 127.0.0.1:61613 --folder out/pipeline

Stop it with Ctrl-C, kill it, kill the broker: started again with the same folder it resumes, and no event is missing or
counted twice. `--once` ends when all present events have been processed.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import pyspark_stomp
from examples.pipeline.events import PAGES_FILE
from examples.pipeline.produce import LOG, QUEUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COUNTS_LOG: Final = "access-counts"
EVENT: Final = "id bigint, time_ms bigint, user string, path string, status int, bytes bigint"
DELAY: Final = "2 hours"
"""Lateness at which an event is still counted. Windows end that much later; state is kept for that long."""
LOOK_SECONDS: Final = 0.2
"""Time between two looks at the progress of the queries."""


def parsed(records: DataFrame) -> DataFrame:
    """Records of the log or the queue as events."""
    from pyspark.sql import functions as f

    fields = f.from_json(f.col("value").cast("string"), EVENT)
    return records.select(fields.alias("event")).select("event.*").withColumn("time", f.timestamp_millis("time_ms"))


def pages(spark: SparkSession) -> DataFrame:
    """The static table."""
    return spark.read.csv(PAGES_FILE.as_uri(), header=True, schema="path string, section string, owner string")


def read_log(spark: SparkSession, brokers: str, *, records_per_batch: int) -> DataFrame:
    """The stream of events, from the first there is."""
    return parsed(
        spark.readStream.format("stomp")
        .option("brokers", brokers)
        .option("subscribe", f"/log/{LOG}")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .load()
    )


def read_queue(spark: SparkSession, brokers: str, *, records_per_batch: int) -> DataFrame:
    """Return the stream of incidents. They leave the queue when the output of their batch is safe."""
    return parsed(
        spark.readStream.format("stomp")
        .option("brokers", brokers)
        .option("subscribe", QUEUE)
        .option("groupId", "incident-report")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .load()
    )


def with_sections(events: DataFrame, table: DataFrame) -> DataFrame:
    """Each event with its section and who looks after it: a join of a stream with a static table."""
    from pyspark.sql import functions as f

    return events.join(f.broadcast(table), "path", "left")


def hourly(events: DataFrame, *, delay: str) -> DataFrame:
    """Counts by hour and section, each given out once: when the watermark says that no more can come."""
    from pyspark.sql import functions as f

    return (
        events.withWatermark("time", delay)
        .groupBy(f.window("time", "1 hour"), "section")
        .agg(f.count("*").alias("count"), f.sum("bytes").alias("bytes"))
        .select(f.unix_millis(f.col("window.start")).alias("hour_ms"), "section", "count", "bytes")
    )


def start(
    spark: SparkSession, brokers: str, folder: Path, *, delay: str, records_per_batch: int, once: bool
) -> list[StreamingQuery]:
    """Return the three queries. Each has a checkpoint of its own, which is enough to resume."""
    from pyspark.sql import functions as f

    trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    events = with_sections(read_log(spark, brokers, records_per_batch=records_per_batch), pages(spark))
    counts = hourly(events, delay=delay)
    to_files = (
        events.writeStream.queryName("events")
        .format("parquet")
        .option("path", f"{folder}/events")
        .option("checkpointLocation", f"{folder}/checkpoints/events")
        .trigger(**trigger)
        .start()
    )
    to_log = (
        counts.select(f.col("section").alias("key"), f.to_json(f.struct(*counts.columns)).alias("value"))
        .writeStream.queryName("counts")
        .format("stomp")
        .option("brokers", brokers.split(",")[0])
        .option("topic", f"/log/{COUNTS_LOG}")
        .option("checkpointLocation", f"{folder}/checkpoints/counts")
        .trigger(**trigger)
        .start()
    )
    incidents = with_sections(
        read_queue(spark, brokers.split(",")[0], records_per_batch=records_per_batch), pages(spark)
    )
    to_report = (
        incidents.writeStream.queryName("incidents")
        .format("parquet")
        .option("path", f"{folder}/incidents")
        .option("checkpointLocation", f"{folder}/checkpoints/incidents")
        .trigger(**trigger)
        .start()
    )
    return [to_files, to_log, to_report]


def run(queries: list[StreamingQuery], news: Callable[[str], None]) -> None:
    """Wait until all queries have ended; tell of each micro-batch. Raises StreamingQueryException if one failed."""
    told: dict[str, int] = {}
    while any(query.isActive for query in queries):
        for query in queries:
            for progress in query.recentProgress:
                name, batch = query.name or "", progress["batchId"]
                if batch > told.get(name, -1) and progress["numInputRows"]:
                    told[name] = batch
                    news(f"{name}: batch {batch}, {progress['numInputRows']:,} rows")
            failure = None if query.isActive else query.exception()
            if failure is not None:
                raise failure
        time.sleep(LOOK_SECONDS)


@click.command()
@click.option(
    "--brokers",
    envvar="SLUICEWAY_URL",
    default="127.0.0.1:61613",
    show_default=True,
    help="HOST:PORT of each, with commas. Also from SLUICEWAY_URL.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/pipeline"),
    show_default=True,
    help="For the results and the checkpoints.",
)
@click.option("--delay", default=DELAY, show_default=True, help="How late an event may come and still be counted.")
@click.option("--records-per-batch", default=50_000, show_default=True, help="Most of one micro-batch.")
@click.option("--once", is_flag=True, help="End when all that is there has been worked on.")
def main(brokers: str, folder: Path, delay: str, records_per_batch: int, once: bool) -> None:
    """Turn the log of events into files and counts, as they come."""
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(0))
    spark = pyspark_stomp.session("access pipeline")
    folder = folder.resolve()
    try:
        queries = start(spark, brokers, folder, delay=delay, records_per_batch=records_per_batch, once=once)
        click.echo(f"working; results and checkpoints are in {folder}")
        run(queries, lambda text: click.echo(f"  {text}"))
    except KeyboardInterrupt:
        click.echo("stopped; the next start goes on from here")
    finally:
        spark.sparkContext.setLogLevel("OFF")  # whatever is cut short complains at length
        for query in spark.streams.active:
            query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
