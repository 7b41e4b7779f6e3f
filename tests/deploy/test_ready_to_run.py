"""Unit, image, compose file and sample configurations: as far as can be told without systemd and without an engine,
what they name is there, and they agree with each other and with the broker.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from sluiceway.cli import main
from sluiceway.cli.exits import Exit
from sluiceway.cli.serve import serve
from sluiceway.config import Config, load
from sluiceway.config.units import parse_seconds
from sluiceway.metrics.catalogue import FAMILIES
from tests.architecture.sources import PACKAGES, ROOT

DEPLOY: Final = ROOT / "deploy"
FILES: Final = {
    "service": DEPLOY / "sluiceway.toml",
    "container": DEPLOY / "docker" / "sluiceway.toml",
}
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # systemd minds the case
    parser.read(DEPLOY / "systemd" / "sluiceway.service")
    return parser


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, lines that go on joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def check_command(arguments: list[str]) -> None:
    """Arguments of `sluiceway serve` that it has: click reads them, and runs nothing."""
    assert arguments[0] == "serve"
    serve.make_context("serve", arguments[1:], resilient_parsing=False)


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILES)
def test_the_sample_configurations_load(kind: str) -> None:
    config = load(FILES[kind], environment={})
    assert config.broker.data_dir == Path("/var/lib/sluiceway")
    assert config.admin.address.endswith(":8161")


def test_the_configuration_of_a_service_listens_on_this_machine_only() -> None:
    config = load(FILES["service"], environment={})
    assert {listener.host for listener in config.listeners} == {"127.0.0.1"}
    assert config.admin.address.startswith("127.0.0.1:")


def test_what_the_sample_proposes_for_a_network_loads_too(tmp_path: Path) -> None:
    """The part in comments, with the files that it names."""
    (tmp_path / "users").write_text("")
    text = FILES["service"].read_text().replace("/etc/sluiceway/users", str(tmp_path / "users"))
    text = re.sub(r"(?m)^# (?=(\[|users|groups|actions|name|address|tls))", "", text)
    path = tmp_path / "sluiceway.toml"
    path.write_text(text)
    config = load(path, environment={})
    assert config.listeners[1].tls.is_on
    assert config.security.permissions[0].groups == ("staff",)
    assert config.security.users_file == tmp_path / "users"


# -- systemd -----------------------------------------------------------------------------------------------------------


def test_the_unit_starts_a_command_that_there_is_with_options_that_it_has() -> None:
    command = shlex.split(unit()["Service"]["ExecStart"])
    assert command[0].endswith("/bin/sluiceway")
    check_command([*command[1 : command.index("--config")], *command[command.index("--data") :]])
    assert command[command.index("--config") + 1] == "/etc/sluiceway/sluiceway.toml"


def test_the_unit_keeps_the_data_where_it_may_write() -> None:
    service = unit()["Service"]
    command = shlex.split(service["ExecStart"])
    assert service["ProtectSystem"] == "strict"
    assert command[command.index("--data") + 1] == f"/var/lib/{service['StateDirectory']}"
    assert service["User"] in (DEPLOY / "systemd" / "sluiceway.sysusers").read_text()


def test_the_unit_gives_the_broker_its_time_and_its_files() -> None:
    service = unit()["Service"]
    assert parse_seconds(service["TimeoutStopSec"]) > Config().broker.shutdown_seconds
    assert int(service["LimitNOFILE"]) > Config().listeners[0].connections_max
    assert parse_seconds(service["WatchdogSec"]) > 10, "it is told once a second"
    assert service["Type"] == "notify"
    assert "-HUP $MAINPID" in service["ExecReload"]


def test_the_unit_does_not_try_again_what_cannot_help() -> None:
    codes = {int(code) for code in unit()["Service"]["RestartPreventExitStatus"].split()}
    assert codes == {Exit.USAGE, Exit.LISTEN, Exit.STORE}


def test_the_unit_is_locked_up() -> None:
    service = unit()["Service"]
    for name in (
        "NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables",
        "ProtectControlGroups", "RestrictNamespaces", "LockPersonality", "MemoryDenyWriteExecute", "RestrictSUIDSGID",
    ):  # fmt: skip
        assert service[name] == "yes", name
    assert service["CapabilityBoundingSet"] == ""
    assert "AF_UNIX" in service["RestrictAddressFamilies"], "systemd is told over a Unix socket"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here: the checks above must do")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "sluiceway.service").read_text().replace("/opt/sluiceway/bin/sluiceway", "/bin/true")
    path = tmp_path / "sluiceway.service"
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert [line for line in done.stderr.splitlines() if "sluiceway.service" in line] == []


# -- image -------------------------------------------------------------------------------------------------------------


def test_everything_that_the_image_copies_is_there_and_gets_into_the_context() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name, rest in instructions():
        if name == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == allowed or source.startswith(f"{allowed}/") for allowed in let_in), source


def test_the_image_has_every_package_and_what_the_wheel_needs() -> None:
    copied = {source for name, rest in instructions() if name == "COPY" for source in rest.split()[:-1]}
    assert copied >= {*PACKAGES, "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}


def test_the_context_leaves_out_all_that_is_not_named() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
    assert not {"!.git", "!.venv", "!sluiceway-data", "!tests"} & set(lines)


def test_the_image_is_pinned_small_and_runs_as_nobody_in_particular() -> None:
    made = instructions()
    assert [rest for name, rest in made if name == "ARG"] == ["PYTHON_IMAGE=python:3.12.8-slim-bookworm"]
    stages = [rest for name, rest in made if name == "FROM"]
    assert stages == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"], "what builds is not in what runs"
    last = max(at for at, (name, _rest) in enumerate(made) if name == "FROM")
    users = [rest for name, rest in made[last:] if name == "USER"]
    assert users == ["10001:10001"], "a number, so that an engine can tell that it is not root"
    assert "--constraint constraints.txt" in " ".join(rest for name, rest in made if name == "RUN")


def test_the_image_holds_no_secret() -> None:
    for name, rest in instructions():
        if name in ("ENV", "ARG"):
            assert not re.search(r"PASS|SECRET|TOKEN|KEY", rest, re.IGNORECASE), rest


def test_the_image_starts_a_command_that_there_is_on_the_ports_that_it_names() -> None:
    made = dict(instructions())
    command = yaml.safe_load(made["ENTRYPOINT"]) + yaml.safe_load(made["CMD"])
    assert command[0] == "sluiceway"
    check_command(command[1 : command.index("--config")])
    copied = [rest.split()[-1] for name, rest in instructions() if name == "COPY"]
    assert command[command.index("--config") + 1] in copied
    config = load(FILES["container"], environment={})
    ports = {port_of(config.admin.address), *(port_of(listener.address) for listener in config.listeners)}
    assert set(made["EXPOSE"].split()) == ports
    assert made["VOLUME"] == str(config.broker.data_dir)
    assert f":{port_of(config.admin.address)}/healthz" in made["HEALTHCHECK"]


# -- compose -----------------------------------------------------------------------------------------------------------


def test_compose_publishes_to_this_machine_only() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_compose_mounts_and_builds_from_what_is_there() -> None:
    build = COMPOSE["services"]["broker"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
                assert volume.endswith(":ro"), f"{name} may not change {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name}: {source}"


def test_compose_agrees_with_the_broker_prometheus_and_grafana() -> None:
    """The names and ports by which they find each other."""
    config = load(FILES["container"], environment={})
    broker = COMPOSE["services"]["broker"]
    inside = {port.rpartition(":")[2] for port in broker["ports"]}
    assert inside == {port_of(config.admin.address), *(port_of(listener.address) for listener in config.listeners)}
    assert f"broker-data:{config.broker.data_dir}" in broker["volumes"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    (target,) = scraped["static_configs"][0]["targets"]
    assert target == f"{config.admin.hosts[0]}:{port_of(config.admin.address)}"
    assert config.admin.hosts[0] in COMPOSE["services"]
    assert config.admin.metrics_open, "Prometheus comes without a login"
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    mounts = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/sluiceway.yml").read_text())["providers"][0]
    assert f"{provider['options']['path']}/sluiceway.json" in mounts


def test_compose_gives_the_broker_its_time_and_takes_its_rights() -> None:
    broker = COMPOSE["services"]["broker"]
    assert parse_seconds(broker["stop_grace_period"]) > Config().broker.shutdown_seconds
    assert broker["ulimits"]["nofile"] > Config().listeners[0].connections_max
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert ":latest" not in service["image"], name
        assert name == "broker" or re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name} is not pinned"


def test_compose_holds_no_secret() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert not re.search(r"(?i)password\s*[:=]|secret\s*[:=]|token\s*[:=]", text)


# -- the pages ---------------------------------------------------------------------------------------------------------


def known_words() -> set[str]:
    """Keys of the configuration, options and commands, metrics: what a page may name."""
    from sluiceway.config.sample import toml_sample
    from tests.deploy.expressions import SAMPLES

    words = set(re.findall(r"(?m)^#?(\w+) =", toml_sample())) | set(re.findall(r"(?m)^#?\[+([\w.]+)\]+", toml_sample()))
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        words.add(name)
        words |= {option for parameter in command.params for option in parameter.opts}
    return words | set(SAMPLES) | set(FAMILIES)


@pytest.mark.parametrize("page", ["hardening.md", "deploy.md", "metrics.md"])
def test_a_page_names_settings_and_metrics_that_there_are(page: str) -> None:
    text = re.sub(r"(?s)^```.*?^```", "", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    text = text.partition("## All metrics")[0]  # made from the catalogue
    named = {
        word for span in re.findall(r"`([^`]+)`", text) for word in re.findall(r"^[a-z]+(?:_[a-z]+)+(?= = |$)", span)
    }
    assert named, "the page names some"
    assert sorted(named - known_words() - {"metrics_page"}) == []


def test_alerts_that_the_pages_name_are_there() -> None:
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    for page in ("hardening.md", "deploy.md", "metrics.md"):
        for name in re.findall(r"`(Sluiceway[A-Z]\w+)`", (ROOT / "docs" / page).read_text()):
            assert f"alert: {name}\n" in rules, f"{page}: {name}"
