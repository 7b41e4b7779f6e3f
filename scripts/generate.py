"""Writes the pages that are generated from code (`--check`: only says which ones differ, and fails then)."""

from __future__ import annotations

import sys
from pathlib import Path

from sluiceway.config.sample import markdown, toml_sample

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(check: bool) -> int:
    pages = {DOCS / "configuration.md": markdown(), DOCS / "sluiceway.toml": toml_sample()}
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    for page in stale:
        if check:
            print(f"docs/{page.name} is not what the code generates: run scripts/check --fix", file=sys.stderr)
        else:
            page.parent.mkdir(exist_ok=True)
            page.write_text(pages[page], encoding="utf-8")
            print(f"wrote docs/{page.name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
