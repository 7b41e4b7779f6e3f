"""Former names of sections are read for one more version, each with a warning that says what to change."""

from __future__ import annotations

import warnings
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

import sluiceway.config
from sluiceway.cli import main
from sluiceway.config import Config, ConfigError, LoggingConfig, load
from sluiceway.config.former import FormerName
from sluiceway.config.sources import Layer
from sluiceway.store.log_storage import LogStorageConfig
from tests.sluiceway.test_config import mistake, mistakes


def told(tmp_path: Path, text: str, **environment: str) -> tuple[Config, list[str]]:
    """The configuration, and all warnings without the path of the file and what each ends with."""
    file = tmp_path / "broker.toml"
    file.write_text(text)
    found: list[FormerName] = []
    config = load(file, environment=environment, tell=found.append)
    ending = ". The next version no longer reads the former name"
    assert all(str(former).endswith(ending) for former in found)
    return config, [str(former).removeprefix(f"{tmp_path}/").removesuffix(ending) for former in found]


def test_no_key_of_logging_is_one_of_logs() -> None:
    """So the keys of a `[logs]` say which of the two it means."""
    logging = {field.name for field in attrs.fields(LoggingConfig)}
    assert not logging & {field.name for field in attrs.fields(LogStorageConfig)}


def test_present_names_are_read_without_a_warning(tmp_path: Path) -> None:
    config, said = told(
        tmp_path, '[logging]\nlevel = "error"\n[logs]\nlogs_max = 7\n', SLUICEWAY_LOGGING__FORMAT="json"
    )
    assert (config.logging, config.logs.logs_max) == (LoggingConfig("error", "json"), 7)
    assert said == []


def test_journal_means_logs(tmp_path: Path) -> None:
    config, said = told(tmp_path, '[broker]\nname = "journal"\n\n[journal]\nlogs_max = 7\ndata_page_bytes = "1 MiB"\n')
    assert (config.logs.logs_max, config.logs.data_page_bytes) == (7, 1 << 20)
    assert said == [
        "broker.toml, line 4: the section [journal] is now called [logs]: write [logs] in place of [journal]"
    ]


def test_logs_with_keys_of_logging_means_logging(tmp_path: Path) -> None:
    config, said = told(tmp_path, '# [logs]\n[logs]\nlevel = "error"\nformat = "json"\n')
    assert (config.logging, config.logs) == (LoggingConfig("error", "json"), LogStorageConfig())
    assert said == [
        "broker.toml, line 2: the section [logs] with level and format is now [logging]: "
        "write [logging] in place of [logs]"
    ]


def test_both_former_sections_are_renamed(tmp_path: Path) -> None:
    """The file of an operator who has changed nothing yet."""
    config, said = told(tmp_path, '[logs]\nlevel = "error"\n[journal]\nlogs_max = 7\n')
    assert (config.logging.level, config.logs.logs_max) == ("error", 7)
    assert [line.partition(": write ")[2] for line in said] == [
        "[logging] in place of [logs]",
        "[logs] in place of [journal]",
    ]


def test_logs_with_keys_of_both_kinds_is_split(tmp_path: Path) -> None:
    config, said = told(tmp_path, '[logs]\nlevel = "error"\nlogs_max = 7\nformat = "json"\n')
    assert (config.logging, config.logs.logs_max) == (LoggingConfig("error", "json"), 7)
    assert said == [
        "broker.toml, line 2: logs.level is now called logging.level: move it to the section [logging]",
        "broker.toml, line 4: logs.format is now called logging.format: move it to the section [logging]",
    ]


def test_a_section_is_not_renamed_to_one_that_is_there(tmp_path: Path) -> None:
    """The same section twice would be no TOML."""
    config, said = told(tmp_path, "[logs]\nlogs_max = 7\n[journal]\nmapped_pages_max = 3\n")
    assert (config.logs.logs_max, config.logs.mapped_pages_max) == (7, 3)
    assert said == [
        "broker.toml, line 4: journal.mapped_pages_max is now called logs.mapped_pages_max: "
        "move it to the section [logs]"
    ]
    config, said = told(tmp_path, '[logging]\nformat = "json"\n[logs]\nlevel = "error"\n')
    assert config.logging == LoggingConfig("error", "json")
    assert said == ["broker.toml, line 4: logs.level is now called logging.level: move it to the section [logging]"]


def test_an_empty_journal_is_named_too(tmp_path: Path) -> None:
    """As in a sample of the version before, in which keys are comments."""
    config, said = told(tmp_path, "[logs]\n#level = 5\n[journal]\n#logs_max = 1000\n")
    assert config == Config()
    assert said == ["broker.toml, line 3: [journal] is now called [logs]: remove [journal]"]
    _config, said = told(tmp_path, "[logs]\nlogs_max = 7\n[journal]\n")
    assert len(said) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("journal.logs_max = 7", 1),
        ("\njournal = { logs_max = 7 }", 2),
        ('[broker]\nname = """\n[journal]\n"""\n[ journal ] # here\nlogs_max = 7', 5),
    ],
)
def test_the_line_is_found_however_it_is_written(tmp_path: Path, text: str, line: int) -> None:
    config, (said,) = told(tmp_path, text)
    assert config.logs.logs_max == 7
    assert said.startswith(f"broker.toml, line {line}: ")


def test_variables_are_named_as_variables(tmp_path: Path) -> None:
    config, said = told(tmp_path, "", SLUICEWAY_LOGS__LEVEL="error", SLUICEWAY_JOURNAL__LOGS_MAX="7")
    assert (config.logging.level, config.logs.logs_max) == ("error", 7)
    assert said == [
        "environment variable SLUICEWAY_JOURNAL__LOGS_MAX: SLUICEWAY_JOURNAL__LOGS_MAX is now called "
        "SLUICEWAY_LOGS__LOGS_MAX: write SLUICEWAY_LOGS__LOGS_MAX in place of SLUICEWAY_JOURNAL__LOGS_MAX",
        "environment variable SLUICEWAY_LOGS__LEVEL: SLUICEWAY_LOGS__LEVEL is now called SLUICEWAY_LOGGING__LEVEL: "
        "write SLUICEWAY_LOGGING__LEVEL in place of SLUICEWAY_LOGS__LEVEL",
    ]


def test_a_later_source_goes_over_an_earlier_one_whatever_the_names(tmp_path: Path) -> None:
    config, _said = told(tmp_path, '[journal]\nlogs_max = 7\n[logging]\nlevel = "error"\n',
                         SLUICEWAY_LOGS__LOGS_MAX="8", SLUICEWAY_LOGS__LEVEL="debug")  # fmt: skip
    assert (config.logs.logs_max, config.logging.level) == (8, "debug")
    flag = Layer("--log-level", {"logging": {"level": "warning"}})
    assert load(environment={"SLUICEWAY_LOGS__LEVEL": "debug"}, flags=[flag], tell=print).logging.level == "warning"


def test_a_key_by_both_names_is_refused(tmp_path: Path) -> None:
    said = mistake_told(tmp_path, "[logs]\nlogs_max = 7\n[journal]\nlogs_max = 7\nmapped_pages_max = 3\n")
    assert said == (
        f"{tmp_path}/broker.toml, line 4: journal.logs_max and logs.logs_max set the same, journal.logs_max by its "
        "former name: remove journal.logs_max"
    )
    said = mistake_told(tmp_path, '[logging]\nlevel = "info"\n[logs]\nlevel = "error"\n')
    assert "logs.level and logging.level set the same" in said
    said = mistake_told(tmp_path, "", SLUICEWAY_JOURNAL__LOGS_MAX="1", SLUICEWAY_LOGS__LOGS_MAX="2")
    assert "SLUICEWAY_JOURNAL__LOGS_MAX and SLUICEWAY_LOGS__LOGS_MAX set the same" in said


def mistake_told(tmp_path: Path, text: str, **environment: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return mistake(tmp_path, text, **environment)


def test_mistakes_speak_the_present_names_and_say_where_they_are(tmp_path: Path) -> None:
    file = f"{tmp_path}/broker.toml"
    assert mistake_told(tmp_path, '[logs]\nlevel = "loud"\n') == (
        f"{file} (logs.level there): logging.level = 'loud': must be one of debug, info, warning, error"
    )
    assert mistake_told(tmp_path, "[journal]\nlogs_max = 0\n") == (
        f"{file} (journal.logs_max there): logs.logs_max = 0: must be 1 or more"
    )
    assert (
        mistake_told(tmp_path, "journal = 5\n")
        == f"{file} ([journal] there): logs = 5: must be a table, such as {{ data_page_bytes = … }}"
    )
    assert mistake_told(tmp_path, "[journal]\nlog_max = 7\n") == (
        f"{file} (journal.log_max there): logs.log_max = 7: unknown key; did you mean logs.logs_max?"
    )


def test_a_mistyped_key_of_logging_is_found_where_it_is_now(tmp_path: Path) -> None:
    assert mistake(tmp_path, '[logs]\nlevle = "info"\n').endswith("unknown key; did you mean logging.level?")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        said = mistakes(tmp_path, '[logs]\nlevel = "info"\nfromat = 5\n[journal]\nlevel = 5\n[store]\nlogs_max = 3\n')
    assert [line.partition("did you mean ")[2] for line in said] == [
        "logs.logs_max?",
        "logging.format?",
        "logging.level?",
    ]


def test_without_anybody_to_tell_python_warns(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[journal]\n")
    with pytest.warns(FutureWarning, match=r"\[journal\] is now called \[logs\]"):
        load(file)


def test_commands_warn_on_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[journal]\nlogs_max = 7\n[[security.permissions]]\nusers = ["*"]\nactions = ["connect"]\n')
    said = f"{file}, line 1: the section [journal] is now called [logs]"
    checked = CliRunner().invoke(main, ["config", "--check", str(file)])
    assert checked.exit_code == 0 and f"warning: {said}" in checked.stderr and said not in checked.stdout
    explained = CliRunner().invoke(main, ["permissions", "explain", "--config", str(file), "web", "admin"])
    assert explained.exit_code == 0 and f"warning: {said}" in explained.stderr


# -- programs ----------------------------------------------------------------------------------------------------------


def test_programs_may_use_former_names_too() -> None:
    logs, logging = LogStorageConfig(logs_max=7), LoggingConfig("error")
    with pytest.warns(DeprecationWarning, match="Config"):
        config = Config(journal=logs, logs=logging)  # type: ignore[call-arg,arg-type]
    assert config == Config(logs=logs, logging=logging)
    with pytest.warns(DeprecationWarning, match=r"Config\(journal=\) is now Config\(logs=\)"):
        assert attrs.evolve(Config(), journal=logs) == Config(logs=logs)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"LogsConfig is now LoggingConfig"):
        assert sluiceway.config.LogsConfig is LoggingConfig


def test_a_mistake_of_a_program_is_still_one() -> None:
    with pytest.raises(TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        Config(nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError):
        load(Path("/nowhere.toml"))
