"""Options of an array."""

from __future__ import annotations

from typing import Final

import attrs

from .errors import ArrayError

ITEM_BYTES: Final = 16
DATA_PAGE_BYTES_MAX: Final = 1 << 31
"""Limit: offsets in a page have 32 bits."""
DATA_PAGE_BYTES_MIN: Final = 64


@attrs.frozen
class ArrayOptions:
    """Layout of an array on the disk, and its limits in the process."""

    index_page_items: int = 1 << 20
    """Number of records in one index page, 16 bytes each (a sparse file of 16 MiB). Fixed when the array is created.
    Larger: fewer files; smaller: retention frees index space in smaller steps."""

    data_page_bytes: int = 128 << 20
    """Size of a data page, a sparse file; no batch can be larger. Fixed when the array is created. Retention by size
    works in steps of it."""

    mapped_pages_max: int = 16
    """Number of unused pages that stay mapped. Each costs address space and one descriptor."""

    resident_bytes_max: int = 64 << 20
    """Touched bytes of mapped pages, about, at which the process releases them (they stay in the page cache). Keeps the
    resident size flat whatever is read; smaller costs more page faults."""

    cached_bytes_max: int = 0
    """Bytes of the end of the array that stay in the system's page cache, about; 0: the system decides. Earlier bytes
    are forgotten after each flush, so that appending reuses the same memory. Where fresh memory is expensive (virtual
    machines that return free memory to their host) appending is twice as fast with it, and reads further back wait for
    the disk."""

    lease_items: int = 1 << 20
    """Number of indexes reserved ahead on the disk, so that none is used twice after a power cut. Costs one more sync
    for each half of them if `flush` is not called; a power cut may skip as many indexes."""

    dirty_pages_max: int = 64
    """Number of pages written since the last flush at which an append flushes. Bounds open files."""

    def check(self) -> None:
        """Raise ArrayError for impossible values."""
        if not 1 <= self.index_page_items <= 1 << 27:
            raise ArrayError(f"index_page_items is {self.index_page_items}: between 1 and {1 << 27} are possible")
        if not DATA_PAGE_BYTES_MIN <= self.data_page_bytes <= DATA_PAGE_BYTES_MAX or self.data_page_bytes % 8:
            raise ArrayError(
                f"data_page_bytes is {self.data_page_bytes}: between {DATA_PAGE_BYTES_MIN} and {DATA_PAGE_BYTES_MAX} "
                "are possible, in steps of 8"
            )
        if min(self.mapped_pages_max, self.resident_bytes_max, self.lease_items, self.dirty_pages_max) < 1:
            raise ArrayError("mapped_pages_max, resident_bytes_max, lease_items and dirty_pages_max are at least 1")
        if self.cached_bytes_max < 0:
            raise ArrayError(f"cached_bytes_max is {self.cached_bytes_max}: 0 or more is possible")
