"""The exact versions that scripts/setup installs, against the oldest Python that the product supports."""

from __future__ import annotations

from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.checkout import ROOT

FLOOR = "3.11.2"
"""Version of Python on Debian 12."""


def test_every_version_that_is_pinned_can_be_installed_on_the_oldest_python() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    refused = {
        each.name: needed
        for each in metadata.distributions()
        if canonicalize_name(each.name) in pinned
        and (needed := each.metadata["Requires-Python"])
        and not SpecifierSet(needed).contains(FLOOR)
    }
    assert not refused, f"these refuse Python {FLOOR}: pin earlier versions in constraints.txt"
