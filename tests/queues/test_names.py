"""The grammar of destination names."""

from __future__ import annotations

import pytest

from sluiceway.queues.names import DestinationName, DestinationNameError, Kind, parse, parse_composite

Q, T = Kind.QUEUE, Kind.TOPIC


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/queue/a", DestinationName("/queue/a", Q)),
        ("a", DestinationName("/queue/a", Q)),
        ("a.b/c", DestinationName("/queue/a.b/c", Q)),
        ("topic.a", DestinationName("/queue/topic.a", Q)),
        ("/queue/topic/a", DestinationName("/queue/topic/a", Q)),
        ("/topic/a.b", DestinationName("/topic/a.b", T)),
        ("/temp-queue/x", DestinationName("/temp-queue/x", Q, temporary_local=True)),
        ("/temp-topic/x", DestinationName("/temp-topic/x", T, temporary_local=True)),
        ("/remote-temp-queue/s1/x", DestinationName("/remote-temp-queue/s1/x", Q, temporary_global=True)),
        ("/remote-temp-topic/s1/x", DestinationName("/remote-temp-topic/s1/x", T, temporary_global=True)),
        ("/queue/a.*", DestinationName("/queue/a.*", Q, wildcard=True)),
        ("/topic/*.b", DestinationName("/topic/*.b", T, wildcard=True)),
        ("/topic/>", DestinationName("/topic/>", T, wildcard=True)),
        ("a.>", DestinationName("/queue/a.>", Q, wildcard=True)),
        ("/queue/a*b", DestinationName("/queue/a*b", Q)),
        ("/queue/a>", DestinationName("/queue/a>", Q)),
        ("/exchange/logs/x", DestinationName("/exchange/logs/x", Q)),
        ("/queues/a", DestinationName("/queues/a", Q)),
        ("/", DestinationName("/", Q)),
        ("/@shop/queue/a", DestinationName("/@shop/queue/a", Q)),
        ("/@shop/topic/#", DestinationName("/@shop/topic/#", T, wildcard=True)),
        ("/@shop/own/*", DestinationName("/@shop/own/*", Q, wildcard=True)),
        ("/@shop", DestinationName("/@shop", Q)),
        ("/@shop/@bank/topic/a", DestinationName("/@shop/@bank/topic/a", Q)),
        ("/@sh.op/topic/a", DestinationName("/@sh.op/topic/a", Q)),
        ("/queue/größe", DestinationName("/queue/größe", Q)),
        ("q" * 1024, DestinationName("/queue/" + "q" * 1024, Q)),
    ],
)
def test_a_name_is_understood(text: str, expected: DestinationName) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the destination is empty"),
        ("  ", "the destination is empty"),
        ("q" * 1025, "1025 characters long, at most 1024"),
        ("/queue/", "has no name after '/queue/'"),
        ("/topic", "has no name: write /topic/NAME"),
        ("/@shop/queue/" + "q" * 1024, "1031 characters long, at most 1024"),
        ("/@a" * 5000 + "/queue/a", "15005 characters long, at most 1024"),
        ("/@shop/topic", "has no name: write /topic/NAME"),
        ("/queue/a\nb", "control characters"),
        ("/queue/\x00", "control characters"),
        ("/queue/>.a", "must be the last level"),
        ("a.>/b", "must be the last level"),
        ("/temp-queue/*", "wildcards are not for temporary destinations"),
        ("/remote-temp-queue/>", "wildcards are not for temporary destinations"),
        ("topic/a", "did you mean /topic/a. A queue that is really called so is /queue/topic/a"),
        ("queue/a", "did you mean /queue/a"),
        ("log/a", "did you mean /log/a"),
        ("topics/a", "did you mean /topic/a"),
        ("temp-queue/a", "did you mean /temp-queue/a"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(DestinationNameError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("/queue/*", "/queue/a", True),
        ("/queue/*", "/queue/a.b", False),
        ("/queue/*", "/topic/a", False),
        ("/queue/*.b", "/queue/a.b", True),
        ("/queue/*.b", "/queue/a/b", False),
        ("/queue/a.*.c", "/queue/a.b.c", True),
        ("/queue/a.*.c", "/queue/a.b.d", False),
        ("/queue/a.>", "/queue/a.b", True),
        ("/queue/a.>", "/queue/a.b.c/d", True),
        ("/queue/a.>", "/queue/a", False),
        ("/queue/>", "/queue/a.b.c", True),
        ("/topic/prices.*", "/topic/prices.(x)", True),
        ("/topic/p+.*", "/topic/pp.x", False),
        ("/>", "/exchange/a", True),
        ("/>", "/queue/a", False),
        ("/*/a", "/topic/a", False),
        ("/>", "/remote-temp-queue/s1/x", False),
        ("/queue/a", "/queue/a", True),
        ("/queue/a", "/queue/b", False),
    ],
)
def test_wildcards_cover_names_of_their_kind(pattern: str, name: str, expected: bool) -> None:
    assert parse(pattern).matches(name) is expected


def test_a_composite_is_all_its_parts_once() -> None:
    assert parse_composite("/queue/a") == (parse("/queue/a"),)
    assert parse_composite("/queue/a, /topic/b,a,c") == (parse("/queue/a"), parse("/topic/b"), parse("c"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,", "the destination is empty"),
        ("a,/topic/", "has no name"),
        (",".join(f"q{n}" for n in range(101)), "names 101 destinations, at most 100"),
    ],
)
def test_a_composite_with_a_wrong_part_is_refused(text: str, message: str) -> None:
    with pytest.raises(DestinationNameError, match=message):
        parse_composite(text)


@pytest.mark.parametrize("pattern", ["/>", "/*/queue/a", "/queue/>", "/queue/*", "/@bank/>", "/@bank/queue/*", "/*/>"])
def test_no_wildcard_covers_another_host(pattern: str) -> None:
    assert not parse(pattern).matches("/@shop/queue/a")
    assert parse("/@shop/queue/>").matches("/@shop/queue/a")
    assert not parse("/@shop/queue/>").matches("/queue/a")
