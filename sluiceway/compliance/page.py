"""Reports as one HTML page, which needs nothing from elsewhere: in the console's colours, light or dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Final

from sluiceway.compliance.registry import Result
from sluiceway.compliance.running import Outcome, Report
from sluiceway.compliance.text import SIGNS, verdict

_STYLE: Final = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 14px/1.5 var(--sans); }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 32px 0 8px; }
p { margin: 4px 0; } .muted { color: var(--muted); }
table { border-collapse: collapse; width: 100%; background: var(--surface); font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--muted); font-weight: 600; } td.number, th.number { text-align: right; }
code, pre { font: 12.5px/1.45 var(--mono); overflow-wrap: anywhere; }
pre { background: var(--sunken); padding: 8px 12px; border-radius: 6px; margin: 6px 0; white-space: pre-wrap; }
details { border: 1px solid var(--line); border-radius: var(--radius); background: var(--surface); margin: 8px 0;
  padding: 8px 14px; }
summary { cursor: pointer; } .r-failed { color: var(--blocked-text); font-weight: 650; }
.r-passed { color: var(--good); } .r-unclear, .r-not { color: var(--throttled-text); }
.verdict { margin: 16px 0; padding: 10px 14px; border-radius: var(--radius); background: var(--good-ground); }
.verdict.bad { background: var(--blocked-ground); color: var(--blocked-text); }
input { font: inherit; padding: 5px 9px; border: 1px solid var(--line-strong); border-radius: 6px; width: 320px;
  max-width: 100%; background: var(--surface); color: inherit; }
"""

_SCRIPT: Final = """
const box = document.getElementById("find");
box.addEventListener("input", () => {
  const word = box.value.toLowerCase();
  for (const row of document.querySelectorAll("#checks tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(word);
});
"""


def page(report: Report, *, transcripts: bool = False) -> str:
    """Return the page. `transcripts`: with the frames of all checks, not only of those that failed or are unclear."""
    return "\n".join(_page(report, transcripts)) + "\n"


def _page(report: Report, transcripts: bool) -> Iterator[str]:
    title = escape(f"STOMP compliance of {report.server or report.address}")
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>{_tokens()}{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>"
    yield (
        f'<p class="muted">{escape(report.address)}, {report.transport}; {report.began:%Y-%m-%d %H:%M} UTC; '
        f"{len(report.outcomes)} checks in {report.seconds:.1f} s; seed {escape(report.seed)}</p>"
    )
    for version, why in report.versions.items():
        if why:
            yield f"<p>No STOMP {version}: {escape(why)}</p>"
    bad = " bad" if report.broken() else ""
    yield f'<p class="verdict{bad}">{escape(verdict(report))}</p>'
    if report.left:
        yield f'<p class="verdict bad">{escape(report.left)}</p>'
    yield from _summary(report)
    failed = [outcome for outcome in report.outcomes if outcome.result is Result.FAILED]
    if failed:
        yield "<h2>Not kept</h2>"
        for outcome in failed:
            yield from _details(outcome, is_open=len(failed) <= 10)
    unclear = [outcome for outcome in report.outcomes if outcome.result is Result.UNCLEAR]
    if unclear:
        yield "<h2>Unclear</h2>"
        for outcome in unclear:
            yield from _details(outcome, is_open=False)
    yield '<h2>All checks</h2>\n<p><input id="find" type="search" placeholder="Find a name, a clause, a result"'
    yield ' aria-label="Find checks"></p>\n<table id="checks">'
    yield "<thead><tr><th>check</th><th>level</th><th>result</th><th>duty</th></tr></thead>\n<tbody>"
    for outcome in report.outcomes:
        yield _row(outcome)
    yield "</tbody>\n</table>"
    if transcripts:
        yield "<h2>Frames</h2>"
        for outcome in report.outcomes:
            if outcome.result not in (Result.FAILED, Result.UNCLEAR) and outcome.transcript:
                yield from _details(outcome, is_open=False)
    yield f"</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>"


def _tokens() -> str:
    """Return the console's colours, the dark ones for readers whose system is dark."""
    text = files("sluiceway").joinpath("console/css/tokens.css").read_text(encoding="utf-8")
    light, _, dark = text.partition(':root[data-theme="dark"] {')
    return f"{light}@media (prefers-color-scheme: dark) {{ :root {{{dark}}}"


def _summary(report: Report) -> Iterator[str]:
    heads = "".join(f'<th class="number">{result.value}</th>' for result in Result)
    yield f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>"
    for key, counts in report.by_level().items():
        cells = "".join(f'<td class="number">{counts[result] or ""}</td>' for result in Result)
        yield f"<tr><td>STOMP {key}</td>{cells}</tr>"
    yield "</tbody></table>"


def _row(outcome: Outcome) -> str:
    check = outcome.check
    said = f'<br><span class="muted">{escape(outcome.reason)}</span>' if outcome.reason else ""
    return (
        f"<tr><td><code>{escape(check.name)}</code><br>"
        f'<span class="muted">{escape(check.section)}</span></td><td>{check.level.value}</td>'
        f"<td>{_result(outcome)}</td><td>{escape(check.duty)}{said}</td></tr>"
    )


def _result(outcome: Outcome) -> str:
    kind = outcome.result.value.split()[0]
    return f'<span class="r-{kind}">{SIGNS[outcome.result]} {outcome.result.value}</span>'


def _details(outcome: Outcome, *, is_open: bool) -> Iterator[str]:
    check = outcome.check
    yield f"<details{' open' if is_open else ''}><summary><code>{escape(check.name)}</code> {_result(outcome)}"
    yield f' <span class="muted">{check.level.value}, {escape(check.clause)}</span></summary>'
    yield f"<p>{escape(check.duty)}</p>"
    if outcome.expected:
        yield f"<p>Expected {escape(outcome.expected)}, but {escape(outcome.came)}.</p>"
    elif outcome.reason:
        yield f"<p>{escape(outcome.reason)}</p>"
    lines = [
        f"{entry.seconds:7.3f} {entry.connection}{entry.kind} {entry.text.replace(chr(10), chr(10) + ' ' * 11)}"
        for entry in outcome.transcript
    ]
    yield f"<pre>{escape(chr(10).join(lines))}</pre></details>"
