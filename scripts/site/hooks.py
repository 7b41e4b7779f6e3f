"""Hooks for MkDocs: pages from outside of docs/, fences with extra words, anchors as in a repository's browser.

Documents link to sources, examples and to pages at the root. Each file that a page links to gets a page of the site
below `source/`, so that the site needs no other server. Links are written for the checkout, where they work as they
stand; here they are turned into links of the site.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build import current_version

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
HERE: Final = Path(__file__).resolve().parent
OUTSIDE: Final = "source/"
"""Path in the site of pages that are not in docs/."""

ASSETS: Final = {
    "assets/site.css": HERE / "site.css",
    "assets/logo.svg": ROOT / "sluiceway" / "console" / "favicon.svg",
}
WHOLE_FOLDERS: Final = ("examples", "deploy")
"""Folders of which each file has a page; other folders have only a list of their files."""

LANGUAGES: Final = {".yml": "yaml", ".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown"}

_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
_OWN_WORDS: Final = re.compile(r"^(```\w+) [^{`\n]+$", re.MULTILINE)
"""The first line of a fence with words for tests, such as `console server` (tests/examples/pages.py)."""


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as repositories show it and as tests/examples/pages.py checks it."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.copyright = f"Sluiceway {current_version()}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the assets, and each file outside of docs/ that a page links to, those that were added included."""
    for uri, path in ASSETS.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    todo = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path is not None]
    todo += [ROOT / name for name in ("README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")]
    known = set(todo)
    for path in todo:  # grows while it is read
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, uri_of(path), content=outside_page(path)))
        for target in (target for target in leads_to(path) if target not in known):
            known.add(target)
            if not target.is_relative_to(DOCS):
                todo.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_others: Any) -> str:
    """Turns links and fences of a page into those of the site."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]  # the front page is a table of contents itself
    path = path_of(page.file.src_uri)
    if page.file.src_uri.startswith(OUTSIDE) and path.suffix != ".md":
        return markdown
    folder = posixpath.dirname(page.file.src_uri)

    def turned(link: re.Match[str]) -> str:
        target, hash_, anchor = link[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        found = (path.parent / target).resolve()
        if not found.exists() or not found.is_relative_to(ROOT):
            return link[0]  # the build will complain
        return f"{link[1]}{posixpath.relpath(uri_of(found), folder)}{hash_}{anchor}{link[3]}"

    parts = _FENCE.split(_OWN_WORDS.sub(r"\1", markdown))
    # Of options, "HOST[:PORT] [default: ...]" is no link.
    return "".join(
        part if part.startswith("```") else _LINK.sub(turned, part).replace("] [default:", "] \\[default:")
        for part in parts
    )


def uri_of(path: Path) -> str:
    """Return the URI in the site of a file or folder of the checkout, by the name of its source."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{OUTSIDE}{name}/index.md"
    return f"{OUTSIDE}{name}" if path.suffix == ".md" else f"{OUTSIDE}{name}.md"


def path_of(uri: str) -> Path:
    """The opposite of `uri_of`."""
    if not uri.startswith(OUTSIDE):
        return DOCS / uri
    name = uri.removeprefix(OUTSIDE)
    if name.endswith("/index.md"):
        return ROOT / name.removesuffix("/index.md")
    path = ROOT / name
    return path if path.exists() else ROOT / name.removesuffix(".md")


def leads_to(path: Path) -> Iterator[Path]:
    """The files and folders of the checkout to which a file or folder has links."""
    if path.is_dir():
        yield from files_of(path)
    elif path.suffix == ".md":
        for part in _FENCE.split(path.read_text(encoding="utf-8")):
            for link in _LINK.finditer("" if part.startswith("```") else part):
                target = link[2].partition("#")[0]
                found = (path.parent / target).resolve()
                if target and "://" not in target and found.exists() and found.is_relative_to(ROOT):
                    yield found


def files_of(folder: Path) -> list[Path]:
    """The files of a folder that have pages."""
    if folder.relative_to(ROOT).parts[0] not in WHOLE_FOLDERS:
        return []
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def outside_page(path: Path) -> str:
    """The page of a file or folder that is not in docs/."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        whole = files_of(path)
        names = [entry.name for entry in sorted(path.iterdir()) if entry.name != "__pycache__"]
        lines = (
            [f"- [{file.relative_to(path).as_posix()}]({_beside(file, path)})" for file in whole]
            if whole
            else [f"- `{entry}`" for entry in names]
        )
        return "\n".join(["---", "search: {exclude: true}", "---", f"# {name}/", "", *lines, ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    fence = "`" * 4
    language = LANGUAGES.get(path.suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _beside(file: Path, folder: Path) -> str:
    return posixpath.relpath(uri_of(file), posixpath.dirname(uri_of(folder)))
