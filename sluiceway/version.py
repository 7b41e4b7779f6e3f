"""The version of Sluiceway, in one place: the build, the CLI and the STOMP `server` header read it here."""

from __future__ import annotations

VERSION = "0.2.0"
