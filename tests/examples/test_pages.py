"""What the README and the documents say is so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from sluiceway.cli.exits import Exit
from sluiceway.config import BrokerConfig, Listener
from sluiceway.flow.upkeep import UPKEEP_FULL
from sluiceway.protocols.stomp.errors import word_of
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues.policy import FULL_ACTIONS, PAGING_MODES, QueuePolicy
from sluiceway.queues.statistics import QueueStatistics
from sluiceway.store.config import StoreConfig
from tests.architecture.sources import ROOT, modules, parsed
from tests.examples.pages import PAGES, blocks, broken_links
from tests.examples.session import Session, shows

SPARK_PAGES = {
    "README.md": [pytest.mark.xdist_group("spark")],
    "spark.md": [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")],
}
STOMP_PAGE = ROOT / "docs" / "stomp.md"
ERRORS_PAGE = ROOT / "docs" / "stomp-errors.md"
README_LINES_MAX = 200


@pytest.mark.interop
@pytest.mark.timeout(600)  # two of them start Spark
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=SPARK_PAGES.get(page.name, []), id=page.name)
        for page in PAGES
        if any(block.kind in ("session", "server") for block in blocks(page))
    ],
)
def test_shell_sessions_run_as_printed(page: Path, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        for block in blocks(page):
            session.play(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_pages_compiles(page: Path) -> None:
    """Also what no session runs."""
    for text in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        compile(text, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = broken_links(page)
    assert not broken, f"{page.name}: {', '.join(broken)}"


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < README_LINES_MAX


def error_codes() -> Iterator[str]:
    """The codes of all ERRORs that the broker can send to a client, as they stand in the code."""
    for path in modules("queues"):  # errors that name the code with which the session tells of them
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign([ast.Name("code")], ast.Constant(str(code))):
                    yield code
    for path in modules("protocols", "sluiceway"):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Tuple([ast.Constant("code"), ast.Constant(str(code))]):  # an ERROR without a ProtocolError
                    yield code
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            at = {"ProtocolError": 0, "_refuse": 1, "send_error": 1}.get(name)
            words = node.args[at : at + 1] if at is not None else []
            if name == "refusal":
                words = [word.value for word in node.keywords if word.arg == "code"]
            for word in words:
                match word:
                    case ast.Constant(str(code)):
                        yield code
                    case ast.Name("UPKEEP_FULL"):
                        yield UPKEEP_FULL
            if name == "whole_number" and isinstance(node.args[1], ast.Constant):
                yield f"bad-{ast.literal_eval(node.args[1])}"


def test_the_stomp_page_knows_every_error_code_and_no_other() -> None:
    section = ERRORS_PAGE.read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    written = {code for cell in cells for code in re.findall(r"`([^`]+)`", cell)}
    # Headers whose names are in tables of the code, and one that is an inner name of `credit: MESSAGES,BYTES`.
    indirect = {
        *("bad-delay", "bad-AMQ_SCHEDULED_DELAY", "bad-x-delay", "bad-producer-sequence"),
        *("bad-AMQ_SCHEDULED_PERIOD", "bad-AMQ_SCHEDULED_REPEAT"),
        *("bad-x-priority", "bad-activemq.priority", "bad-destination-type", "bad-subscription-type"),
        *("bad-x-max-length", "bad-x-max-length-bytes", "bad-x-message-ttl"),
        *("other-order", "other-partitions"),
    }
    assert written - indirect == {word_of(code) for code in error_codes()} - {"bad-credit bytes"}


def test_the_stomp_page_names_real_limits() -> None:
    known = {name for name in dir(StompLimits()) if not name.startswith("_")}
    kinds: tuple[Any, ...] = (QueuePolicy, BrokerConfig, Listener, StoreConfig, QueueStatistics)
    known |= {field.name for kind in kinds for field in attrs.fields(kind)}
    known |= {"controllers_count", "groups_count", "shards_count"}  # of answers
    known |= {"sluiceway_sender"}  # a header
    text = STOMP_PAGE.read_text(encoding="utf-8") + ERRORS_PAGE.read_text(encoding="utf-8")
    written = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text))
    assert written <= known


def test_every_full_action_is_explained() -> None:
    page = (ROOT / "docs" / "flow-control.md").read_text(encoding="utf-8")
    assert all(f"| `{action}`" in page for action in (*FULL_ACTIONS, *PAGING_MODES))


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert all(f"| {int(code)} | " in page for code in Exit)


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("up 4 s, 105.6 KiB held\n", "up 12 min, 3 B held\n", True),
        ("a\nb\nc\n", "a\n...\n", True),
        ("a\n", "a\n...\n", True),
        ("b\na\n", "a\n...\n", False),
        ("message-id: 9017be99-1\n", "message-id: ...\n", True),
        ("2 flows wait\n", "2 flows wait for me\n", False),
        ("", "", True),
        ("something\n", "", False),
    ],
)
def test_output_is_compared_with_numbers_masked(actual: str, expected: str, same: bool) -> None:
    assert shows(actual, expected) is same
