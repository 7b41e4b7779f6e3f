"""Options of an array."""

from __future__ import annotations

from typing import Final

import attrs

from .errors import ArrayError

ITEM_BYTES: Final = 16
DATA_PAGE_BYTES_MAX: Final = 1 << 31
"""Offsets in a page have 32 bits."""
DATA_PAGE_BYTES_MIN: Final = 64


@attrs.frozen
class ArrayOptions:
    """How an array lies on the disk, and what it may take of the process."""

    index_page_items: int = 1 << 20
    """Records whose places one index page holds, 16 bytes each (a sparse file of 16 MiB). Fixed when the array is
    created. Larger: fewer files; smaller: retention frees their space in smaller steps."""

    data_page_bytes: int = 128 << 20
    """Size of a data page, a sparse file; no batch can be larger. Fixed when the array is created. Retention by size
    works in steps of it."""

    mapped_pages_max: int = 16
    """Pages that stay mapped when nobody looks at them. Mapping costs address space and one descriptor each."""

    resident_bytes_max: int = 64 << 20
    """When about so much of the mapped pages was touched, the process gives it back (it stays in the page cache). Keeps
    the resident size flat however much is read; smaller costs more page faults."""

    cached_bytes_max: int = 0
    """How much of the end stays in the system's page cache, about; 0: the system decides. What lies before is forgotten
    after each flush, so that appending uses the same memory again and again. Where memory that was never used before is
    dear (virtual machines that give free memory back to their host) appending is twice as fast with it, and who reads
    further back waits for the disk."""

    lease_items: int = 1 << 20
    """So many indexes ahead are reserved on the disk, so that none is used twice after a power cut. One more sync for
    each half of them if `flush` is not called; as many indexes may be skipped by a power cut."""

    dirty_pages_max: int = 64
    """When so many pages were written since the last flush, an append flushes. Bounds open files."""

    def check(self) -> None:
        """Raises ArrayError for what can't be."""
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
