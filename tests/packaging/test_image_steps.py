"""Instructions of a Dockerfile, carried out in a folder. The real ones: scripts/image, in continuous integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.image_steps import Image, StepError, instructions


@pytest.fixture
def image(tmp_path: Path) -> Image:
    context = tmp_path / "context"
    (context / "store").mkdir(parents=True)
    (context / "store" / "a.py").write_text("a")
    (context / "secret").write_text("s")
    (context / ".dockerignore").write_text("*\n!store\n")
    return Image(tmp_path / "root", context)


def carry_out(image: Image, text: str) -> None:
    for word, rest in instructions(text):
        image.carry_out(word, rest)


def test_instructions_are_carried_out_below_the_folder(image: Image) -> None:
    carry_out(
        image,
        """
        # A comment.
        ARG PYTHON_IMAGE=x
        FROM ${PYTHON_IMAGE} AS build
        WORKDIR /build
        COPY store store
        RUN test -f store/a.py \\
            && mkdir -p /opt/sluiceway/bin
        ENV PATH=/opt/sluiceway/bin:$PATH WORD=1
        RUN echo "$WORD" >/opt/sluiceway/word
        RUN install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/sluiceway
        RUN groupadd --gid 10001 sluiceway
        USER 10001:10001
        """,
    )
    assert (image.root / "opt/sluiceway/word").read_text() == "1\n"
    assert (image.root / "var/lib/sluiceway").stat().st_mode & 0o777 == 0o700
    assert image.accounts.read_text() == "groupadd --gid 10001 sluiceway\n"
    assert image.said["USER"] == "10001:10001"


def test_a_file_that_the_context_leaves_out_can_not_be_copied(image: Image) -> None:
    with pytest.raises(StepError, match="dockerignore keeps it out"):
        carry_out(image, "COPY secret secret")


def test_a_step_that_fails_is_named_with_what_it_said(image: Image) -> None:
    with pytest.raises(StepError, match=r"(?s)RUN echo why.*why"):
        carry_out(image, "RUN echo why && false")
