"""Passcodes and their hashes, and the file of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluiceway.security import secrets
from sluiceway.security.config import SecurityConfig
from sluiceway.security.secrets import Hashed, Plain, SecretError
from sluiceway.security.users import SecurityError, Users

QUICK: dict[str, Any] = {"log_n": 4, "r": 1, "p": 1}
ANN = str(secrets.hashed("correct horse", **QUICK))


def test_a_hash_knows_its_passcode_and_no_other() -> None:
    kept = secrets.parse(str(secrets.hashed("pass:wörd $1", **QUICK)))
    assert kept.matches("pass:wörd $1".encode())
    for wrong in (b"", b"pass", "pass:wörd $1 ".encode()):
        assert not kept.matches(wrong)


def test_the_form_is_the_same_for_ever() -> None:
    """Files of users outlive versions."""
    made = secrets.hashed("p", log_n=4, r=8, p=2, salt=b"0123456789abcdef")
    assert str(made) == "scrypt$ln=4$r=8$p=2$MDEyMzQ1Njc4OWFiY2RlZg$" + str(made).rpartition("$")[2]
    assert secrets.parse(str(made)) == made


def test_two_hashes_of_one_passcode_differ() -> None:
    assert str(secrets.hashed("p", **QUICK)) != str(secrets.hashed("p", **QUICK))


def test_new_ones_take_no_more_memory_than_documented() -> None:
    assert secrets.STAND_IN.memory_bytes == 16 * 1024 * 1024
    assert not secrets.STAND_IN.is_quick


def test_neither_hash_nor_passcode_is_ever_shown() -> None:
    for kept in (secrets.parse(ANN), secrets.parse("open sesame")):
        assert "sesame" not in repr(kept)
        assert "scrypt" not in repr(kept)
    users = Users.of(SecurityConfig(users={"ann": ANN, "bob": "open sesame"}))
    assert "sesame" not in repr(users)
    assert ANN[-10:] not in repr(users)
    assert "sesame" not in repr(SecurityConfig(users={"bob": "open sesame"}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("scrypt$", "not one"),
        ("scrypt$ln=14$r=8$p=5$salt", "not one"),
        ("scrypt$ln=99$r=8$p=5$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg", "too much"),
        ("scrypt$ln=23$r=8$p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg", "too much"),
        ("scrypt$ln=4$r=0$p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg", "too much"),
        ("scrypt$ln=4$r=1$p=1$AAAA$MDEyMzQ1Njc4OWFiY2RlZg", "too short"),
        ("scrypt$ln=4$r=1$p=1$MDEyMzQ1Njc4OWFiY2RlZg$AAAA", "too short"),
        ("scrypt$ln=4$r=1$p=1$A$MDEyMzQ1Njc4OWFiY2RlZg", "base 64"),
    ],
)
def test_hashes_that_are_none_are_refused_without_being_shown(text: str, why: str) -> None:
    """One that was cut must not become a passcode in plain text; one that takes a gigabyte is an attack."""
    with pytest.raises(SecretError, match=why) as refused:
        secrets.parse(text)
    assert "MDEy" not in str(refused.value)


def test_what_is_no_hash_is_a_passcode_in_plain_text_and_is_told() -> None:
    users = Users.of(SecurityConfig(users={"ann": ANN, "bob": "open sesame"}))
    assert isinstance(users.secrets["ann"], Hashed)
    assert isinstance(users.secrets["bob"], Plain)
    assert users.in_plain_text == ["bob"]


@pytest.mark.parametrize("passcode", ["", "two\nlines", "x" * 1025, "a\0b"])
def test_passcodes_that_no_client_could_send_are_not_hashed(passcode: str) -> None:
    with pytest.raises(ValueError, match="passcode"):
        secrets.hashed(passcode, **QUICK)


@pytest.mark.parametrize("name", ["", " ann", "*", "a\nb", "x" * 201, "a\x7f"])
def test_names_that_no_user_can_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="can't be a user"):
        SecurityConfig(users={name: ANN})


# ---------------------------------------------------------------------- the file


def test_users_come_from_the_file_too(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"# ours\n\nann:{ANN}\n  of:colons:{ANN}  \n")
    users = Users.of(SecurityConfig(users={"bob": ANN}, users_file=file, groups={"staff": ("ann", "bob")}))
    assert set(users.identities) == {"ann", "bob", "of:colons"}
    assert users.identities["ann"].groups == {"staff"}


def test_all_that_is_wrong_with_users_is_told_at_once_and_no_hash(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"ann:{ANN}\nann:{ANN}\nnonsense\nbob:plain\n*:{ANN}\ncarl:scrypt$cut\nbob2:{ANN}\n")
    with pytest.raises(SecurityError) as refused:
        Users.of(SecurityConfig(users={"bob2": ANN}, users_file=file, groups={"g": ("nobody",)}))
    said = str(refused.value)
    for line in (2, 3, 4, 5, 6):
        assert f"line {line}:" in said
    assert "'bob2' stands in" in said
    assert "'nobody' who is no user" in said
    assert "plain" not in said.replace("'bob'", "").replace("plain text", "")
    assert ANN[-8:] not in said


def test_a_file_that_is_not_there_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="sluiceway secret --user NAME >>"):
        Users.of(SecurityConfig(users_file=tmp_path / "none"))


def test_users_by_certificate_need_no_passcode() -> None:
    users = Users.of(SecurityConfig(certificates={"Web-1.Example.org": "web"}, groups={"shops": ("web",)}))
    assert users.are_configured
    assert users.certificates == {"web-1.example.org": "web"}
    assert users.identities["web"].groups == {"shops"}
