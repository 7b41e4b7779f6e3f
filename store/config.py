"""Settings of the store."""

from __future__ import annotations

from typing import Final

import attrs

from ..queues.settings import about, field, not_negative, one_of, or_none

ENGINES: Final = ("auto", "leveldb", "postgresql", "memory", "none")
MIB: Final = 1024 * 1024


@attrs.frozen
class StoreConfig:
    """Settings of where messages are kept, and when they are written."""

    engine: str = field(
        "auto",
        "",
        "`leveldb`: in the folder `data_dir` of the broker. `postgresql`: in a database (`url`), which may outlive "
        "this machine; needs the extra `postgresql`. `memory`: like it, but gone when the broker is; for tests of what"
        " a store does. `none`: nothing is kept; RECEIPTs say `durability:memory`, and queues hold what fits into "
        "memory. `auto`: `leveldb` for `sluiceway serve`, `none` for an embedded broker.",
        one_of(ENGINES),
    )
    url: str = attrs.field(
        default="",
        metadata=about(
            'The database of `engine = "postgresql"`, as `postgresql://user:password@host:5432/database`, or with '
            "several hosts behind commas. What it leaves out comes from libpq's variables (`PGHOST`, `PGPASSWORD`, "
            "`PGPASSFILE`). `?options=-csearch_path%3DNAME` chooses a schema.",
            secret=True,
        ),
    )
    flush_delay_min_seconds: float = field(
        0.005,
        "seconds",
        "How long a persistent message waits at least before it is written, if it has no RECEIPT: a message "
        "acknowledged before never touches the disk. Also the wait for a queue without consumers.",
        not_negative,
    )
    flush_delay_max_seconds: float = field(
        0.2,
        "seconds",
        "How long it waits at most. In between, twice the time that consumers of its queue take to acknowledge. This, "
        "and `sync_interval_seconds`, is the loss of a crash for messages without a RECEIPT.",
        not_negative,
    )
    sync_interval_seconds: float = field(
        1.0,
        "seconds",
        "Writes without a RECEIPT are synced to the disk after this time at most, or with the next RECEIPT. A power "
        "cut can cost unsynced writes; the death of the process can't.",
        not_negative,
    )
    disk_free_min_bytes: int = field(
        256 * MIB,
        "bytes",
        "With less free space on the disk of `data_dir`, persistent messages wait with their senders and no more "
        "messages are paged out; consuming, acknowledging and expiry continue. These need the reserve. Below some 50 "
        "MiB it is none: after a write that failed for want of space, LevelDB needs 24 MiB to continue, and room that "
        "consumers make comes too late.",
        or_none(not_negative),
    )
    bytes_max: int | None = field(
        None,
        "bytes",
        "The same guard for the size of the store itself. None: the disk is the limit.",
        or_none(not_negative),
    )
