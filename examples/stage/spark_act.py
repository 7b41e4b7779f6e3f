"""The act with Spark: a streaming job and a broker are killed in the middle, and every sum is right."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from examples.pipeline.rehearse import Rehearsal, RehearsalError
from examples.stage.account import Account, Check
from examples.stage.play import Act, Stage


def missing() -> str:
    """Tell what keeps the act from being played; empty if nothing does."""
    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    from pyspark_stomp.java import NoJavaError, find_java

    try:
        find_java()
    except (NoJavaError, OSError) as error:
        return str(error)
    return ""


def counted(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """The pipeline of examples/pipeline, with brokers of its own."""
    events_count = stage.count(300_000, 20_000)
    try:
        with Rehearsal(
            (stage.folder / "spark").resolve(), events_count, stage.screen.say, stage.screen.progress
        ) as rehearsal:
            checks = rehearsal.play()
    except RehearsalError as error:
        return Account(), [Check("the job came to its end", str(error), False)]
    stage.hold_the_picture()
    return rehearsal.account, checks


SPARK_ACT: Final = Act(
    "Spark is killed", "A streaming job counts exactly, whatever happens to it and to a broker.", counted
)
