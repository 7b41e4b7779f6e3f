"""The batch job: count a day again from the log, with the events that came too late for the stream.

    python -m examples.pipeline.recompute --brokers 127.0.0.1:61613 --from 2026-11-20T00:00 --to 2026-11-22T00:00

A log remembers, so the past can be read by time: the time of appending, which brokers look up without reading. The
records appended in that range are read once, in parallel; events of other days are left out by their own time.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

import pyspark_stomp
from examples.pipeline.events import DAY, DAY_MS, HOUR_MS
from examples.pipeline.produce import LOG
from examples.pipeline.stream import pages, parsed, with_sections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIN_PARTITIONS: Final = 4


def recompute(spark: SparkSession, brokers: str, *, from_ms: int, to_ms: int, day_start_ms: int) -> DataFrame:
    """Return the counts by hour and section of the day, from the records appended from `from_ms` to before `to_ms`."""
    from pyspark.sql import functions as f

    records = (
        spark.read.format("stomp")
        .option("brokers", brokers)
        .option("subscribe", f"/log/{LOG}")
        .option("startingTimestamp", from_ms)
        .option("endingTimestamp", to_ms)
        .option("minPartitions", MIN_PARTITIONS)
        .schema("value binary")  # only this column leaves the source
        .load()
    )
    return (
        with_sections(parsed(records), pages(spark))
        .where(f.col("time_ms").between(day_start_ms, day_start_ms + DAY_MS - 1))
        .dropDuplicates(["id"])  # the producer may have sent some twice
        .groupBy((f.col("time_ms") - f.pmod("time_ms", f.lit(HOUR_MS))).alias("hour_ms"), "section")
        .agg(f.count("*").alias("count"), f.sum("bytes").alias("bytes"))
    )


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@click.command()
@click.option(
    "--brokers",
    envvar="SLUICEWAY_URL",
    default="127.0.0.1:61613",
    show_default=True,
    help="HOST:PORT of each, with commas. Also from SLUICEWAY_URL.",
)
@click.option("--day", default=DAY, show_default=True, help="Which day to count.")
@click.option("--from", "from_", required=True, help="Appended at this time (UTC) or later: 2026-11-20T00:00.")
@click.option("--to", required=True, help="Appended before this time (UTC).")
def main(brokers: str, day: str, from_: str, to: str) -> None:
    """Count a day again; one line of JSON for each hour and section."""
    spark = pyspark_stomp.session("access pipeline: a day again")
    try:
        counts = recompute(spark, brokers, from_ms=_ms(from_), to_ms=_ms(to), day_start_ms=_ms(day))
        for row in counts.orderBy("hour_ms", "section").collect():
            click.echo(json.dumps(row.asDict()))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
