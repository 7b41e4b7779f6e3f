"""The console's files, out of the package: read once, found by exact name, so no path can lead anywhere else."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import attrs

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "json": "application/json",
    "webmanifest": "application/manifest+json",
}
"""Content types by file ending. Files of other kinds are not served."""

MISSING: Final = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Sluiceway</title>
<p>The console is not part of this installation: its files are missing from the package.</p>
<p>The API is there: <a href="/api/v1/openapi.json">/api/v1/openapi.json</a></p>
"""


@attrs.frozen(slots=True)
class File:
    """One file, as it is sent."""

    data: bytes
    content_type: str
    etag: str


def _file(data: bytes, ending: str) -> File:
    return File(data, TYPES[ending], f'"{hashlib.sha256(data).hexdigest()[:24]}"')


class ConsoleFiles:
    """All files of the console."""

    def __init__(self, folder: Traversable | None = None) -> None:
        """Load the files. `folder`: their place; None: in the package."""
        self._files: dict[str, File] = {}
        folder = files("sluiceway").joinpath("console") if folder is None else folder
        if folder.is_dir():
            self._read(folder, "")

    def _read(self, folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                self._read(entry, f"{prefix}{entry.name}/")
                continue
            ending = entry.name.rpartition(".")[2]
            if ending in TYPES:
                self._files[prefix + entry.name] = _file(entry.read_bytes(), ending)

    @property
    def index(self) -> File:
        """The page at `/`."""
        return self._files.get("index.html") or _file(MISSING, "html")

    def get(self, name: str) -> File | None:
        """`js/app.js`. None: there is none."""
        return self._files.get(name)
