"""Settings of the store."""

from __future__ import annotations

from typing import Any, Final

import attrs

ENGINES: Final = ("auto", "leveldb", "postgresql", "memory", "none")
MIB: Final = 1024 * 1024


def _engine(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if value not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {value!r}")


def _bytes_not_negative(_instance: object, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"{attribute.name} must not be negative, got {value}")


def _not_negative(_instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if value < 0:
        raise ValueError(f"{attribute.name} must not be negative, got {value}")


@attrs.frozen
class StoreConfig:
    """Settings of where messages are kept, and when they are written."""

    engine: str = attrs.field(
        default="auto",
        validator=_engine,
        metadata={
            "unit": "",
            "doc": "`leveldb`: in the folder `data_dir` of the broker. `postgresql`: in a database (`url`), which may "
            "outlive this machine; needs the extra `postgresql`. `memory`: like it, but gone when the broker "
            "is; for tests of what a store does. `none`: nothing is kept; RECEIPTs say `durability:memory`, and queues "
            "hold what fits into memory. `auto`: `leveldb` for `sluiceway serve`, `none` for an embedded broker.",
        },
    )
    url: str = attrs.field(
        default="",
        metadata={
            "unit": "",
            "secret": True,
            "doc": 'The database of `engine = "postgresql"`, as `postgresql://user:password@host:5432/database`, or '
            "with several hosts behind commas. What it leaves out comes from libpq's variables (`PGHOST`, "
            "`PGPASSWORD`, `PGPASSFILE`). `?options=-csearch_path%3DNAME` chooses a schema.",
        },
    )
    flush_delay_min_seconds: float = attrs.field(
        default=0.005,
        validator=_not_negative,
        metadata={
            "unit": "seconds",
            "doc": "How long a persistent message waits at least before it is written, if it has no RECEIPT: a "
            "message acknowledged before never touches the disk. Also the wait for a queue without consumers.",
        },
    )
    flush_delay_max_seconds: float = attrs.field(
        default=0.2,
        validator=_not_negative,
        metadata={
            "unit": "seconds",
            "doc": "How long it waits at most. In between, twice the time that consumers of its queue take to "
            "acknowledge. This, and `sync_interval_seconds`, is the loss of a crash for messages without a "
            "RECEIPT.",
        },
    )
    sync_interval_seconds: float = attrs.field(
        default=1.0,
        validator=_not_negative,
        metadata={
            "unit": "seconds",
            "doc": "Writes without a RECEIPT are synced to the disk after this time at most, or with the next "
            "RECEIPT. A power cut can cost unsynced writes; the death of the process can't.",
        },
    )
    disk_free_min_bytes: int = attrs.field(
        default=256 * MIB,
        validator=_bytes_not_negative,
        metadata={
            "unit": "bytes",
            "doc": "With less free space on the disk of `data_dir`, persistent messages wait with their senders and no "
            "more messages are paged out; consuming, acknowledging and expiry continue. These need the reserve. "
            "Below some 50 MiB it is none: after a write that failed for want of space, LevelDB needs 24 MiB to"
            " continue, "
            "and room that consumers make comes too late.",
        },
    )
    bytes_max: int | None = attrs.field(
        default=None,
        validator=_bytes_not_negative,
        metadata={
            "unit": "bytes",
            "doc": "The same guard for the size of the store itself. None: the disk is the limit.",
        },
    )
