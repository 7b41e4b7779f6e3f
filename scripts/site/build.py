"""Builds the documentation site: each version in a folder of its own, and beside them what lets a reader choose.

    build/docs/index.html       leads to the newest version
    build/docs/versions.json    all versions that are there, newest first
    build/docs/0.1.0/           one version; older ones stay where an earlier build has put them

A warning of MkDocs, such as a link that leads nowhere, fails the build.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
VERSION_FILE: Final = ROOT / "sluiceway" / "version.py"


def current_version() -> str:
    """The version of the checkout, which need not be importable."""
    found = re.search(r'^VERSION = "([^"]+)"$', VERSION_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{VERSION_FILE} names no version"
    return found[1]


def versions_in(folder: Path) -> list[str]:
    """The versions that were built there, newest first."""
    names = [page.parent.name for page in folder.glob("*/index.html") if page.parent.name[0].isdigit()]
    return sorted(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)], reverse=True)


def mkdocs(*arguments: str) -> int:
    """Runs MkDocs with the configuration of the checkout; returns its exit code."""
    command = [sys.executable, "-m", "mkdocs", *arguments, "--config-file", str(ROOT / "mkdocs.yml")]
    # Not --quiet: what is not printed is not counted as a warning either.
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
    }  # what of the theme will be maintained how long: decisions.md
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def build(into: Path) -> int:
    """Builds the site of this version in a folder of `into`, and lists all versions there; returns an exit code."""
    version = current_version()
    code = mkdocs("build", "--strict", "--site-dir", str(into / version))
    if code == 0:
        versions = versions_in(into)
        entries = [{"version": name, "title": name, "aliases": []} for name in versions]
        (into / "versions.json").write_text(json.dumps(entries) + "\n", encoding="utf-8")
        (into / "index.html").write_text(
            f'<!doctype html><meta charset="utf-8"><title>Sluiceway</title>'
            f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
            f'<a href="{versions[0]}/index.html">Sluiceway {versions[0]}</a>\n',
            encoding="utf-8",
        )
        print(f"scripts/docs: {into / 'index.html'}")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation as a site.")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "docs", help="folder to build in (build/docs)")
    parser.add_argument("--serve", action="store_true", help="serve the pages, build anew what changes")
    parser.add_argument("--address", default="127.0.0.1:8000", help="address for --serve (127.0.0.1:8000)")
    options = parser.parse_args()
    if options.serve:
        try:
            return mkdocs("serve", "--strict", "--dev-addr", options.address, "--watch", str(ROOT / "scripts" / "site"))
        except KeyboardInterrupt:
            return 0
    return build(options.into.resolve())


if __name__ == "__main__":
    sys.exit(main())
