"""A mistyped command names the nearest one; a word from elsewhere names ours."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sluiceway.cli import COMMANDS, main
from sluiceway.cli.suggestions import OTHER_WORDS


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["serv"], "serve"),
        (["recieve"], "receive"),
        (["lgo"], "log"),
        (["STAT"], "stat"),
        (["docter"], "doctor"),
        (["start"], "serve"),
        (["subscribe"], "receive"),
        (["user"], "secret"),
        (["list_queues"], "stat"),
        (["purge_queue"], "purge"),
        (["log", "lst"], "list"),
        (["log", "ls"], "list"),
        (["store", "chek"], "check"),
        (["spark", "docter"], "doctor"),
    ],
)
def test_what_was_meant_is_named(typed: list[str], meant: str) -> None:
    result = CliRunner().invoke(main, typed)
    assert result.exit_code == 2
    assert f"there is no command {typed[-1]!r}; did you mean {meant}" in result.stderr


def test_what_is_like_nothing_gets_the_list() -> None:
    result = CliRunner().invoke(main, ["xyzzy"])
    assert result.exit_code == 2
    assert "there is no command 'xyzzy'; there are serve, send, receive" in result.stderr


@pytest.mark.parametrize(("typed", "path"), [(["help"], "main"), (["log", "help"], "main log")])
def test_help_is_an_option(typed: list[str], path: str) -> None:
    result = CliRunner().invoke(main, typed)
    assert f"write {path} --help" in result.stderr


def test_a_mistyped_option_names_the_nearest() -> None:
    result = CliRunner().invoke(main, ["stat", "--jsn"])
    assert result.exit_code == 2
    assert "--json" in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("receive /queue/a --prefetch 1", "--header prefetch-count"),
        ("serve --port 1", "--listen"),
        ("send /queue/a x --port 1", "--url"),
        ("stat --password x", "--passcode"),
    ],
)
def test_an_option_of_other_brokers_names_ours(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main, typed.split())
    assert result.exit_code == 2
    assert meant in result.stderr


def test_an_option_in_place_of_a_command_is_told_as_such() -> None:
    result = CliRunner().invoke(main, ["--bogus"])
    assert result.exit_code == 2
    assert "--bogus" in result.stderr


def test_no_word_from_elsewhere_hides_a_command() -> None:
    """`check` is one of `store`, but not of the whole."""
    assert not set(OTHER_WORDS) & set(COMMANDS)


@pytest.mark.parametrize("group", [[], ["log"], ["store"]])
def test_no_line_of_a_list_of_commands_is_cut(group: list[str]) -> None:
    said = CliRunner().invoke(main, [*group, "--help"]).stdout.partition("Commands:")[2]
    assert said and "..." not in said
