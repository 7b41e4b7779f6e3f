"""Counters of a store.

Source: anchors d21; DESIGN section 7.
"""

from __future__ import annotations

import attrs

from .batch import StoreBatch


@attrs.define
class StoreCounters:
    """Counters since the start of the process."""

    written_count: int = 0
    """Messages."""
    written_bytes: int = 0
    batches_count: int = 0
    syncs_count: int = 0
    paged_out_count: int = 0
    """Messages that were not persistent, and were written to leave memory."""
    failures_count: int = 0
    """Writes that failed, and were tried again."""
    corrupt_count: int = 0
    """Records that could not be read."""
    lost_count: int = 0
    """Messages in them."""
    last_write_seconds: float = 0.0
    longest_write_seconds: float = 0.0
    write_seconds: float = 0.0
    """Time that all batches took, from hand-over to the answer."""
    sync_seconds: float = 0.0
    """The part of it for batches that were synced."""
    largest_batch_count: int = 0
    forgotten_cancelled_count: int = 0
    """Needless writes of queues that are gone."""

    def count(self, batch: StoreBatch, now_seconds: float) -> None:
        """Count a batch that is written."""
        took_seconds = now_seconds - batch.started_seconds
        self.batches_count += 1
        self.syncs_count += batch.sync
        self.written_count += batch.saved_count
        self.paged_out_count += batch.paged_count
        self.written_bytes += batch.size_bytes
        self.last_write_seconds = took_seconds
        self.longest_write_seconds = max(self.longest_write_seconds, took_seconds)
        self.write_seconds += took_seconds
        self.sync_seconds += took_seconds if batch.sync else 0.0
        self.largest_batch_count = max(self.largest_batch_count, batch.saved_count)
