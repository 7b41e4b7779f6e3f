"""Temporary screens over the table: the help, and the chain of one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sluiceway.flow.words import age_in_words
from sluiceway.top.chains import Chain
from sluiceway.top.columns import COLUMNS, printable
from sluiceway.top.picture import View

HELP_KEYS: Final = """\
q, Ctrl-C       end
?               this page; Escape leaves it
Tab, ←, →, 1-7  another view
↑, ↓, PgUp …    another row
Enter           why is it blocked? follows "waits on …" step by step
/               show only rows that have this text; Escape shows all again
s               sort by the next column; clicking a heading sorts by that one
r               the other way round
p               pause the display; p again continues

Rates come from the broker's counters between two answers. `–` is not known yet.
`≥41 s` was there before the first look. A wait or a blocked row is worth a look
when it lasts: short ones come and go in any busy broker.
"""


class HelpScreen(ModalScreen[None]):
    """Help: all keys, and the meaning of the columns of a view."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "close")]

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def compose(self) -> ComposeResult:
        said = [HELP_KEYS, f"{self._view.value}:"]
        said += [f"  {column.heading:<12} {column.about}" for column in COLUMNS[self._view] if column.about]
        with VerticalScroll(classes="over"):
            yield Static(Text("\n".join(said)))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


class ChainScreen(ModalScreen[None]):
    """Chain of waits of a row; follows the broker while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "dismiss", "close"),
        Binding("p", "app.pause", "pause"),
    ]

    def __init__(self, follow: Callable[[], Chain | None]) -> None:
        """Show a chain. `follow`: returns the present chain; None: the row is gone."""
        super().__init__()
        self._follow = follow
        self._titles: list[str] = []
        self._chain: Chain | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="over"):
            yield Static(Text("Chain of waits: ↓ or Enter continues, Escape leaves"), id="chain-head")
            yield OptionList(id="steps")
            with VerticalScroll(id="details-pane"):
                yield Static(id="details")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.renew()

    def renew(self) -> None:
        """The broker has answered again."""
        self._chain = self._follow()
        steps = self.query_one(OptionList)
        if self._chain is None:
            steps.clear_options()
            self._titles = []
            self.query_one("#details", Static).update(Text("It is gone."))
            return
        at = steps.highlighted or 0
        standing = self._titles[at] if at < len(self._titles) else None
        prompts = _prompts(self._chain)
        self._titles = [step.title for step in self._chain.steps]
        if len(prompts) == steps.option_count:
            for index, prompt in enumerate(prompts):
                steps.replace_option_prompt_at_index(index, prompt)
        else:
            steps.clear_options()
            steps.add_options([Option(prompt) for prompt in prompts])
        steps.highlighted = self._titles.index(standing) if standing in self._titles else 0
        self._tell()

    def on_option_list_option_highlighted(self) -> None:
        """Another step is looked at."""
        self._tell()

    def on_option_list_option_selected(self) -> None:
        """Follow the chain to the next step (Enter)."""
        steps = self.query_one(OptionList)
        if steps.highlighted is not None and steps.highlighted + 1 < steps.option_count:
            steps.highlighted += 1

    def _tell(self) -> None:
        at = self.query_one(OptionList).highlighted
        if self._chain is None or at is None or at >= len(self._chain.steps):
            return
        step = self._chain.steps[at]
        said = Text()
        said.append(f"{printable(step.title)}\n", style="bold")
        said.append(printable(step.words))
        for line in step.details:
            said.append(f"\n· {printable(line)}")
        if self._chain.cyclic and at == len(self._chain.steps) - 1:
            said.append("\n! A cycle: it never resolves by itself.", style="bold")
        self.query_one("#details", Static).update(said)


def _prompts(chain: Chain) -> list[Text]:
    prompts = []
    for number, step in enumerate(chain.steps):
        arrow = "" if number == 0 else f"{'  ' * (number - 1)}└ waits on "
        age = "" if step.age_seconds is None else f", {age_in_words(step.age_seconds)}"
        end = "" if number + 1 < len(chain.steps) else " …which is a cycle" if chain.cyclic else ""
        if number + 1 == len(chain.steps) and number and not chain.cyclic:
            end = "  ← root cause"
        prompts.append(Text(f"{arrow}{printable(step.title)}{age}{end}", no_wrap=True, overflow="ellipsis"))
    return prompts
