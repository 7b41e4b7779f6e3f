"""Page files as mapped memory, read-only: mapped on demand, forgotten when cold.

A view keeps the mapping of its page alive: forgetting a page only drops a reference and never closes a mapping in use.
A page file may be shorter than a page: the existing part is mapped, and mapped anew when a later part is needed and the
file has grown. Nothing reads behind the end of a file, which would kill the process (SIGBUS).

Touched pages count towards the resident size of the process. When about `resident_bytes_max` were touched, all mappings
are advised as not needed: the kernel unmaps the memory and keeps it in its cache; later reads get it back by a page
fault.

Any thread may use the pages. All methods raise ReadFailedError if the system can't map an existing file.
"""

from __future__ import annotations

import mmap
import re
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Final

from .errors import ReadFailedError, from_os
from .files import Files

INDEX_NAME: Final = re.compile(r"index-(\d{16})")
DATA_NAME: Final = re.compile(r"data-(\d{10})")
_NONE: Final = (-1, 0, memoryview(b""))
_WINDOW_BITS: Final = 16
"""A page fault maps up to 64 KiB around it."""


def index_path(folder: Path, page: int) -> Path:
    return folder / f"index-{page:016d}"


def data_path(folder: Path, page: int) -> Path:
    return folder / f"data-{page:010d}"


class PageShortError(Exception):
    """A page file is missing or too short. Not for callers of the package."""


class MappedPages:
    """The mapped pages of one array."""

    __slots__ = (
        "_files",
        "_folder",
        "_last_data",
        "_last_index",
        "_lock",
        "_mapped_max",
        "_maps",
        "_resident_max",
        "_touched",
        "_window",
    )

    def __init__(self, files: Files, folder: Path, mapped_pages_max: int, resident_bytes_max: int) -> None:
        self._files = files
        self._folder = folder
        self._mapped_max = mapped_pages_max
        self._resident_max = resident_bytes_max
        self._lock = Lock()
        # Data pages have even keys, index pages odd ones.
        self._maps: OrderedDict[int, tuple[memoryview, mmap.mmap]] = OrderedDict()
        # The last page of each kind, so that the usual case needs no lock.
        self._last_data = self._last_index = _NONE
        self._touched = 0
        self._window = -1

    def index(self, page: int, end: int) -> memoryview:
        """Return an index page, at least up to this byte. Raises PageShortError."""
        number, length, view = self._last_index
        if number == page and length >= end:
            return view
        return self._view(page * 2 + 1, end)

    def data(self, page: int, end: int) -> memoryview:
        """Return a data page, at least up to this byte. Raises PageShortError."""
        number, length, view = self._last_data
        if number == page and length >= end:
            return view
        return self._view(page * 2, end)

    def _view(self, key: int, end: int) -> memoryview:
        with self._lock:
            found = self._maps.get(key)
            if found is not None and len(found[0]) >= end:
                self._maps.move_to_end(key)
                self._keep_last(key, found[0])
                return found[0]
            path = self._path(key)
            try:
                mapped = self._files.map(path)
            except OSError as error:
                raise ReadFailedError(str(from_os(error, self._folder, "reading"))) from error
            if mapped is None:
                self._maps.pop(key, None)
                self._last_data = self._last_index = _NONE
                raise PageShortError(f"{path} is missing or empty")
            view = memoryview(mapped)
            self._maps[key] = view, mapped
            self._maps.move_to_end(key)
            while len(self._maps) > self._mapped_max:
                self._maps.popitem(last=False)
            if len(view) < end:
                raise PageShortError(f"{path} has {len(view)} bytes, byte {end - 1} is needed")
            self._keep_last(key, view)
            return view

    def _keep_last(self, key: int, view: memoryview) -> None:
        if key & 1:
            self._last_index = key >> 1, len(view), view
        else:
            self._last_data = key >> 1, len(view), view

    def _path(self, key: int) -> Path:
        return index_path(self._folder, key >> 1) if key & 1 else data_path(self._folder, key >> 1)

    def touch(self, page: int, offset: int, count_bytes: int) -> None:
        """Count these bytes of a data page, about to be read, as touched."""
        window = page << 32 | offset >> _WINDOW_BITS
        if window == self._window and count_bytes < 1 << _WINDOW_BITS:
            return
        self._window = window
        self._touched += max(count_bytes, 1 << _WINDOW_BITS)
        if self._touched >= self._resident_max:
            self.give_back()

    def give_back(self) -> None:
        """Release all resident memory to the kernel's cache."""
        self._touched = 0
        with self._lock:
            mappings = [mapped for _view, mapped in self._maps.values()]
        for mapped in mappings:
            mapped.madvise(mmap.MADV_DONTNEED)

    def forget_index(self, page: int) -> None:
        with self._lock:
            self._maps.pop(page * 2 + 1, None)
            self._last_index = _NONE

    def forget_data(self, page: int) -> None:
        with self._lock:
            self._maps.pop(page * 2, None)
            self._last_data = _NONE

    def forget_all(self) -> None:
        with self._lock:
            self._maps.clear()
            self._last_data = self._last_index = _NONE
