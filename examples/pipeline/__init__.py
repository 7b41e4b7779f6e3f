"""A pipeline to start from: web-access events through Sluiceway and Spark.

    produce.py ──> /log/access, on one or several brokers ──> stream.py ──> Parquet files, one row for each event
              │                                                        └──> /log/access-counts: hourly counts by section
              └──> /queue/incidents, one message for each error ──────────> Parquet files, one row for each incident
                   /log/access ──> recompute.py: the truth about one day, the late ones included

    events.py    what the events are; computed, so that everybody can check the sums
    pages.csv    the static table: which section a page belongs to, and who looks after it
    produce.py   sends events
    stream.py    the Structured Streaming job
    recompute.py the batch job
    rehearse.py  all of it, with the job and a broker killed in the middle, and the sums checked

docs/spark.md takes you through it.
"""
