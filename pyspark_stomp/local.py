"""A Spark session for this machine, and the registration of the source.

What goes wrong with plain Spark on a laptop, and what `session` does about it: no Java, or one that Spark does not
start on (`java`); workers that run another Python than this one; a master that binds to the address of a network card;
tasks that are never tried again; two hundred tasks for a handful of rows; pages of logs. Not for clusters: there all of
this is set by the one who submits the job (docs/spark.md says what).
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_stomp.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS: Final = 4
"""Attempts of a task: as on a cluster. The master `local[2]` would try once."""
SHUFFLE_PARTITIONS_MAX: Final = 8
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_ROOT: Final = Path(__file__).resolve().parent.parent


class NoSparkError(ImportError):
    """PySpark or something that it needs is not installed. The message says how to install it."""


def session(
    name: str = "sluiceway",
    *,
    cores_count: int | None = None,
    settings: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """The Spark session of this process; started if there is none. The source `stomp` is registered with it.

    Starting takes some seconds and sets, for this process and those that it starts, the environment variables JAVA_HOME
    (if need be), PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON, SPARK_LOCAL_IP and PYTHONPATH; those that are set already stay,
    but for a JAVA_HOME on which Spark can't run. An existing session is returned unchanged.

    `name`: of the application.
    `cores_count`: number of tasks that run at a time; default is the number of cores.
    `settings`: of Spark; they override those made here.
    `log_level`: what Spark's own log on standard error shows: `OFF`, `ERROR`, `WARN`, `INFO`.
    Raises NoSparkError: PySpark or pyarrow is missing.
    Raises NoJavaError: there is no Java that fits.
    """
    try:
        import pyarrow  # noqa: F401  # said now, not by a worker in the middle of a job
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NoSparkError(f"{error}: install what Spark needs with: pip install 'sluiceway[spark]'") from error
    there = SparkSession.getActiveSession()
    if there is not None:
        register(there)
        return there
    prepare()
    builder = SparkSession.builder.appName(name)
    for key, value in {**local_settings(cores_count, log_level), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        made: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        error.add_note("`sluiceway spark doctor` looks for the cause.")
        raise
    register(made)
    return made


def prepare() -> None:
    """Set the environment variables that Spark reads when it starts; see `session`. Raises NoJavaError, OSError."""
    choice = find_java()
    if choice.java_home is not None:
        os.environ["JAVA_HOME"] = str(choice.java_home)
    # Otherwise workers run the `python3` of the path, which has nothing of what is installed here.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if str(_ROOT) not in [*site.getsitepackages(), site.getusersitepackages()]:
        # A checkout on this process's path only: workers and planners must find it, too.
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        if str(_ROOT) not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *paths])


def local_settings(cores_count: int | None = None, log_level: str = "ERROR") -> dict[str, str]:
    """Spark's settings for one machine."""
    cores_count = cores_count or os.cpu_count() or 1
    return {
        "spark.master": f"local[{cores_count},{ATTEMPTS}]",
        "spark.sql.shuffle.partitions": str(min(cores_count, SHUFFLE_PARTITIONS_MAX)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # it would write itself between the lines of the program
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -Dsluiceway.loglevel={log_level}"
        ),
    }


def register(spark: SparkSession) -> None:
    """Make `format("stomp")` known to a session. Spark finds it by itself, too, unless another package called
    `pyspark_...` fails to be imported: then nothing is found. Quicker than the search, moreover.
    """
    from pyspark_stomp.source import StompDataSource

    spark.dataSource.register(StompDataSource)
