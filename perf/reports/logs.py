"""Section of docs/performance.md about the measurement of logs; the figures are among those of all scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perf.logs.scenarios import LOGS_BY_NAME

_METHOD = """\
Logs (the scenarios log-…), besides that:

- A rate is records a second, *log* the bytes of the records themselves. Batches are made beforehand, of 500 records
  that are not alike, uncompressed. The appender is one connection; a reader is one connection, and each is a process.
- Receipts are waited for, and a RECEIPT leaves when the records are on the disk (`log_sync = "receipt"`, the default).
  The indexes in receipts and MESSAGEs must follow on each other without a hole, and at the end the log must be as long
  as what was sent; of batches every 64th body is put together and checked with its checksums. Other bodies are skipped
  by their length.
- *raw* is a program that does nothing else, in the same run: for reading, one process that sends from a mapped file and
  one that receives; for appending, one that writes blocks of 8 MiB to a growing file and syncs each.
- The reader of the past begins when the page cache has forgotten the log; *past disk* is what the disk was read for.
  The tail is appended at a fixed rate there, and its reader must keep it.
- For RabbitMQ the log is a stream, declared with `x-queue-type:stream`, sent to by `/amq/queue/NAME` and read with
  `x-stream-offset:first`. RabbitMQ has no batches over STOMP.
"""


def log_method(scenarios: Iterable[str]) -> Iterator[str]:
    """Return the lines about logs, if any of these scenarios is about them."""
    if any(name in LOGS_BY_NAME for name in scenarios):
        yield _METHOD
