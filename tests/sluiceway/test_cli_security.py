"""`sluiceway secret`, `permissions explain`, `config --check`, and `serve` with users that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluiceway.cli import main
from sluiceway.config.listening import listener_table
from sluiceway.security import secrets

FILE = """
[security]
users = {{ web = "{kept}", ops = "{kept}" }}
[[security.permissions]]
users = ["ops"]
actions = ["*"]
[[security.permissions]]
users = ["web"]
actions = ["connect"]
listeners = ["inside"]
[[security.permissions]]
users = ["web"]
actions = ["send"]
destinations = ["/queue/orders.>"]
[[listeners]]
address = "127.0.0.1:0"
name = "inside"
"""
KEPT = str(secrets.hashed("p", log_n=4, r=1, p=1))


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=input)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(FILE.format(kept=KEPT))
    return path


def test_a_hash_is_printed_and_the_passcode_never() -> None:
    result = run("secret", input="open sesame\n")
    assert result.exit_code == 0
    assert secrets.parse(result.stdout.strip()).matches(b"open sesame")
    assert "sesame" not in result.output


def test_a_line_for_the_file_of_users() -> None:
    result = run("secret", "--user", "web", input="open sesame")
    name, _colon, kept = result.stdout.strip().partition(":")
    assert name == "web"
    assert secrets.parse(kept).matches(b"open sesame")


@pytest.mark.parametrize("input", ["", "\n", "x" * 2000])
def test_what_is_no_passcode_is_refused(input: str) -> None:
    result = run("secret", input=input)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_passcode_that_is_not_utf_8_is_refused_and_not_shown() -> None:
    result = CliRunner().invoke(main, ["secret"], input=b"s\xe4same\n")
    assert result.exit_code == 2
    assert "is not UTF-8" in result.output
    assert "same" not in result.output


def test_a_name_that_is_none_is_refused() -> None:
    assert run("secret", "--user", "a\nb", input="p\n").exit_code == 2


@pytest.mark.parametrize(
    ("asked", "said", "code"),
    [
        (("web", "send", "/queue/orders.eu"), "web may send /queue/orders.eu: entry 3", 0),
        (("web", "send", "orders.eu"), "web may send /queue/orders.eu: entry 3", 0),
        (("web", "receive", "/queue/orders.eu"), "web may not receive /queue/orders.eu: no entry matches", 5),
        (("web", "send", "/queu/a"), "did you mean /queue/a?", 5),
        (("web", "connect", "inside"), "web may connect inside: entry 2", 0),
        (("web", "admin"), "web may not admin: no entry", 5),
        (("ops", "admin"), "ops may admin: entry 1 (allow everything)", 0),
        (("wep", "send", "/queue/a"), "no user 'wep'; there are: ops, web", 2),
        (("web", "send"), "name it, such as /queue/orders", 2),
        (("web", "send", "/queue/>.x"), "must be the last level", 2),
        (("web", "fly", "/queue/a"), "is not one of", 2),
    ],
)
def test_it_explains_which_entry_decides(file: Path, asked: tuple[str, ...], said: str, code: int) -> None:
    result = run("permissions", "explain", "--config", str(file), *asked)
    assert said in result.output
    assert result.exit_code == code


def test_without_users_everything_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("")
    result = run("permissions", "explain", "--config", str(file), "anybody", "admin")
    assert "no users are configured" in result.output
    assert result.exit_code == 0


def test_permissions_without_any_user_say_where_users_go(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[[security.permissions]]\nusers = ["ann"]\nactions = ["connect"]\n')
    result = run("config", "--check", str(file))
    assert result.exit_code == 2
    assert (
        "there is no user 'ann'; there are no users yet: add them to users or users_file of [security]" in result.stderr
    )


def test_one_user_is_no_users(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    for count, said in ((1, "; 1 user\n"), (2, "; 2 users\n")):
        names = ", ".join(f'u{number} = "{KEPT}"' for number in range(count))
        file.write_text(
            f'[security]\nusers = {{ {names} }}\n[[security.permissions]]\nusers = ["*"]\nactions = ["*"]\n'
        )
        assert run("config", "--check", str(file)).stdout.endswith(said)


def test_a_check_of_the_file_tells_what_can_hardly_be_meant(tmp_path: Path, file: Path) -> None:
    assert "warning" not in run("config", "--check", str(file)).output
    file.write_text(file.read_text().replace(KEPT, "in plain text"))
    result = run("config", "--check", str(file))
    assert "2 users" in result.output
    assert "warning: passcodes in plain text: ops, web" in result.output
    assert "in plain text;" not in result.stdout


@pytest.mark.parametrize("command", [("config", "--check"), ("serve", "--config")])
def test_entries_that_contradict_each_other_end_with_2_and_the_entry(file: Path, command: tuple[str, str]) -> None:
    file.write_text(
        file.read_text()
        + '[[security.permissions]]\nusers = ["ops"]\nactions = ["send"]\nallow = false\n'
        + '[[security.permissions]]\nusers = ["wep"]\nactions = ["send"]\n'
    )
    result = run(*command, str(file))
    assert result.exit_code == 2
    assert "there is no user 'wep'; did you mean web?" in result.output
    file.write_text(file.read_text().replace("wep", "ops"))
    result = run(*command, str(file))
    assert result.exit_code == 2
    assert "permissions[3]: the entry (entry 4 (deny send)) never matters" in result.output


def test_a_file_of_users_with_mistakes_ends_with_2_and_the_line(tmp_path: Path, file: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann:{KEPT}\nbob:open sesame\n")
    file.write_text(f'[security]\nusers_file = "{users}"\n')
    result = run("serve", "--config", str(file))
    assert result.exit_code == 2
    assert f"{users}, line 2: the passcode of 'bob' is no hash" in result.output
    assert "sesame" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "stomp+ssl://127.0.0.1:0"), "needs a certificate"),
        (("--listen", "127.0.0.1:0", "--tls-certificate", "c.pem"), "give one"),
        (("--listen", "127.0.0.1:0", "--tls-key", "k.pem"), "--tls-key is the key of --tls-certificate"),
        (("--listen", "http://127.0.0.1:0"), "has an unknown scheme"),
        (("--listen", "stomp://127.0.0.1:0/stomp"), "only WebSocket has a path"),
    ],
)
def test_listeners_that_contradict_themselves_end_with_2_and_what_to_write(
    arguments: tuple[str, ...], said: str
) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("127.0.0.1:1", {"address": "127.0.0.1:1"}),
        ("stomp://[::1]", {"address": "[::1]:61613"}),
        ("stomp+ssl://h", {"address": "h:61614", "tls": {"certificate": "c", "key": "k"}}),
        ("ws://h", {"address": "h:15674", "protocol": "websocket"}),
        (
            "wss://[::]:1/a/b",
            {
                "address": "[::]:1",
                "protocol": "websocket",
                "websocket": {"path": "/a/b"},
                "tls": {"certificate": "c", "key": "k"},
            },
        ),
    ],
)
def test_a_listener_in_one_word_is_what_a_table_says(text: str, table: dict[str, object]) -> None:
    assert listener_table(text, "c", "k") == table
