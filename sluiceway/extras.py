"""Extras: parts of Sluiceway whose dependencies are installed on request, as in `pip install 'sluiceway[console]'`.

    with needs("console", "the admin port"):
        from sluiceway.admin.server import AdminServer

Dependencies of an extra are imported where the part is used, inside `needs`, which names the extra to install.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OURS: Final = ("sluiceway", "pyspark_stomp")
"""Packages that every installation has."""

PACKAGES: Final = {
    "console": {"hypercorn": "hypercorn", "starlette": "starlette", "prometheus_client": "prometheus-client"},
    "postgresql": {"psycopg": "psycopg"},
    "top": {"textual": "textual"},
    "cluster": {"kazoo": "kazoo"},
    "oauth": {"jwt": "PyJWT", "cryptography": "cryptography"},
    "ldap": {"ldap3": "ldap3", "pyasn1": "pyasn1"},
    "tracing": {
        "opentelemetry.sdk.trace": "opentelemetry-sdk",
        "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
    },
}
"""Modules that the broker imports, by extra, with the packages that have them. The extra `spark` is pyspark_stomp's."""


class MissingExtraError(ImportError):
    """Part of Sluiceway was used whose extra is not installed. The message names the extra."""

    def __init__(self, extra: str, part: str, missing: str) -> None:
        """`part`: what was used; `missing`: a module or package of the extra."""
        super().__init__(f"{part} needs {missing}, which is not installed: {remedy(extra)}")
        self.extra = extra


def remedy(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'sluiceway[{extra}]'"


@contextmanager
def needs(extra: str, part: str) -> Iterator[None]:
    """Import dependencies of an extra in the block. Raises MissingExtraError if one is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        raise MissingExtraError(extra, part, error.name) from None


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed. Imports none of them."""
    return [package for module, package in PACKAGES[extra].items() if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above the module is not installed either
        return False
