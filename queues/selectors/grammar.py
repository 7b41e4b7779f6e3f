"""Grammar of selectors, and translation of Lark's errors into messages for users. The only module that knows Lark.

All expressions have one kind: whether an operand is a number, a text or a truth value is found by the compiler, as the
type of a header is unknown before. Chains (`a AND b AND c`, `1 + 2 - 3`) are flat, so only parentheses and signs nest.
The parser is table-driven (LALR) and does not recurse, whatever its input.

One parser is made for each of the two spellings of names, which takes a good tenth of a second with the import of Lark.
A broker makes them in a thread (`prepare`), for which the first selectors wait (table.py).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Final

from .errors import SelectorError, quoted

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

GRAMMAR: Final = r"""
?start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: _NOT negation                                     -> not_
         | comparison
?comparison: sum
    | sum (EQUAL | UNEQUAL) sum                              -> equality
    | sum (LESS | LESS_OR_EQUAL | MORE | MORE_OR_EQUAL) sum  -> order
    | sum _BETWEEN sum _AND sum                              -> between
    | sum _NOT _BETWEEN sum _AND sum                         -> not_between
    | sum _IN "(" _items ")"                                 -> in_
    | sum _NOT _IN "(" _items ")"                            -> not_in
    | sum _LIKE STRING [_ESCAPE STRING]                      -> like
    | sum _NOT _LIKE STRING [_ESCAPE STRING]                 -> not_like
    | sum _IS _NULL                                          -> is_null
    | sum _IS _NOT _NULL                                     -> is_not_null
_items: _item ("," _item)*
_item: STRING | number
number: [PLUS | MINUS] NUMBER
?sum: product ((PLUS | MINUS) product)*
?product: unary ((TIMES | OVER) unary)*
?unary: PLUS unary                                           -> plus
      | MINUS unary                                          -> minus
      | atom
?atom: NAME                                                  -> name
     | QUOTED                                                -> quoted_name
     | STRING                                                -> string
     | NUMBER                                                -> literal_number
     | TRUE                                                  -> true
     | FALSE                                                 -> false
     | "(" disjunction ")"                                   -> parentheses

_OR.2: /or{end}/i
_AND.2: /and{end}/i
_NOT.2: /not{end}/i
_BETWEEN.2: /between{end}/i
_IN.2: /in{end}/i
_LIKE.2: /like{end}/i
_ESCAPE.2: /escape{end}/i
_IS.2: /is{end}/i
_NULL.2: /null{end}/i
TRUE.2: /true{end}/i
FALSE.2: /false{end}/i
EQUAL: "="
UNEQUAL.2: "<>" | "!="
LESS_OR_EQUAL.2: "<="
MORE_OR_EQUAL.2: ">="
LESS: "<"
MORE: ">"
PLUS: "+"
MINUS: "-"
TIMES: "*"
OVER: "/"
STRING: /'(?:[^']|'')*'/
QUOTED: /"(?:[^"]|"")+"/
NUMBER: /(?:0[xX][0-9a-fA-F]+[lL]?|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?){end}/
NAME: /{name}/
%ignore /\s+/
"""

STEP_WORDS: Final = 4
"""Tokens per step: 50 microseconds."""

COMPILING_SHARE: Final = 5
"""Number of parsing steps per additional empty step, which pay for compiling in one go."""

END: Final = r"(?![\w$.])"
NAME: Final = r"[^\W\d][\w$.]*|\$[\w$.]*"
HYPHENATED: Final = r"(?:[^\W\d]|\$)(?:[\w$.]|-(?=[^\W\d]))*"
"""Names with ActiveMQ's prefix `hyphenated_props:`."""

_VALUES: Final = frozenset({"NAME", "QUOTED", "STRING", "NUMBER", "TRUE", "FALSE", "LPAR", "_NOT", "PLUS", "MINUS"})
_COMPARISONS: Final = frozenset(
    {"EQUAL", "UNEQUAL", "LESS", "LESS_OR_EQUAL", "MORE", "MORE_OR_EQUAL", "_BETWEEN", "_IN", "_LIKE", "_IS"}
)
_SIGNS: Final = frozenset({"PLUS", "MINUS", "TIMES", "OVER"})
_IN_WORDS: Final = {
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": "a comma",
    "PLUS": "+",
    "MINUS": "-",
    "STRING": "a string in single quotes",
    "NUMBER": "a number",
    "NAME": "a header name",
    "$END": "the end",
}


@cache
def _parser(*, hyphens: bool) -> Lark:
    from lark import Lark

    end, name = (END.replace(r"$.", r"$.\-"), HYPHENATED) if hyphens else (END, NAME)
    keywords, _newline, numbers = GRAMMAR.partition("\nNUMBER:")
    text = keywords.replace("{end}", end) + "\nNUMBER:" + numbers.replace("{end}", END).replace("{name}", name)
    return Lark(text, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def prepare() -> None:
    """Import Lark and make both parsers. For any thread; a second call does nothing."""
    if is_prepared():
        return
    for hyphens in (False, True):
        parse("a = 1", hyphens=hyphens)


def is_prepared() -> bool:
    """Return whether both parsers exist."""
    return _parser.cache_info().currsize == 2


def parse(text: str, *, start: int = 0, hyphens: bool = False) -> Tree[Token]:
    """Parse a selector at once; see `parsing`."""
    steps = parsing(text, start=start, hyphens=hyphens)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            tree: Tree[Token] = end.value
            return tree


def parsing(text: str, *, start: int = 0, hyphens: bool = False) -> Generator[None, None, Tree[Token]]:
    """Parse a selector in steps of some tokens. `start`: its beginning, behind prefixes; `hyphens`: names may contain
    them without quotes. Raises SelectorError.
    """
    from lark import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

    # Blanks in place of the prefixes keep the positions of errors right.
    parser = _parser(hyphens=hyphens).parse_interactive(" " * start + text[start:])
    try:
        count = 0
        for count, _token in enumerate(parser.iter_parse(), 1):
            if not count % STEP_WORDS:
                yield
        state = parser.lexer_thread.state
        last = None if state is None else state.last_token
        tree: Tree[Token] = parser.feed_eof(last)  # type: ignore[no-untyped-call]
        # The caller compiles the tree in one step, which takes a fifth of the time of all these steps.
        yield from repeat(None, count // (STEP_WORDS * COMPILING_SHARE))
    except UnexpectedToken as error:
        if error.token.type == "$END":
            line, column = _end_of(text)
            found = "it ends"
        else:
            line, column = error.token.line or 1, error.token.column or 1
            found = f"{quoted(str(error.token))} can't stand"
        accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
        raise SelectorError(f"{found} here: {_expected(accepted)}", text, line, column) from None
    except UnexpectedCharacters as error:
        raise SelectorError(_of_character(text[error.pos_in_stream :]), text, error.line, error.column) from None
    except UnexpectedInput as error:  # other exceptions of future Lark versions
        raise SelectorError(str(error).split("\n")[0], text, error.line or 1, error.column or 1) from None
    return tree


def _end_of(text: str) -> tuple[int, int]:
    stripped = text.rstrip()
    return stripped.count("\n") + 1, len(stripped) - (stripped.rfind("\n") + 1) + 1


def _of_character(rest: str) -> str:
    first = rest[:1]
    if first in ("'", '"'):
        if rest.startswith('""'):
            return "a header name is not empty"
        what = "string" if first == "'" else "name"
        return f"the {what} that begins here does not end: close it with {first}, write {first * 2} for one in it"
    if first.isdigit() or first == ".":
        return "this is no number: a header name that begins with a digit has to stand in double quotes"
    return f"{quoted(first)} has no meaning in a selector: put header names with such characters into double quotes"


def _expected(terminals: set[str]) -> str:
    """Describe the tokens that are possible."""
    said: list[str] = []
    left = set(terminals)
    if {"NAME", "LPAR"} <= left:
        said.append("a value (header name, 'string', number, TRUE, FALSE or a parenthesis)")
        left -= _VALUES
    elif "_BETWEEN" in left and "EQUAL" in left:
        said.append("a comparison (=, <>, <, <=, >, >=, BETWEEN, IN, LIKE, IS)")
        left -= _COMPARISONS | {"_NOT"}
    if "TIMES" in left or left >= _SIGNS:
        said.append("+, -, * or /")
        left -= _SIGNS
    said += sorted(_IN_WORDS.get(name, name.removeprefix("_")) for name in left)
    return "expected " + (said[0] if len(said) == 1 else ", ".join(said[:-1]) + " or " + said[-1])
