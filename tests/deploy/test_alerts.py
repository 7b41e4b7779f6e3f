"""Alert rules: each names metrics that there are, and says what to do."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from tests.architecture.sources import ROOT
from tests.deploy.expressions import SAMPLES, TARGET_LABELS, metrics_of, mistakes_in

PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
GROUPS: Final[list[dict[str, Any]]] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
RULES: Final = [rule for group in GROUPS for rule in group["rules"]]

PROMISED: Final = {
    "SluicewayConsumerStalled",
    "SluicewayBacklogOld",
    "SluicewayQuotaNear",
    "SluicewayDiskGuardShut",
    "SluicewayDeadLettersGrow",
    "SluicewayBlockedLong",
    "SluicewayCertificateExpires",
    "SluicewayLoginsFail",
    "SluicewayDispatcherSlow",
    "SluicewayDown",
    "SluicewayFaults",
}


def test_what_an_operator_must_hear_of_has_a_rule() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    assert set(names) >= PROMISED


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_names_only_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    assert mistakes_in(rule["expr"]) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    """With labels that its expression has, in a form that Prometheus reads."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    assert rule["labels"]["severity"] in ("page", "ticket")
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert len(summary) < 100
    assert len(description) > 50
    labels = set(TARGET_LABELS)
    for name in metrics_of(rule["expr"]):
        labels |= SAMPLES.get(name, set())
    assert set(re.findall(r"\$labels\.(\w+)", summary + description)) <= labels
    functions = set(re.findall(r"\$value \| (\w+)", summary + description))
    assert functions <= {"humanize", "humanizeDuration", "humanizePercentage"}


def test_metrics_that_the_words_name_are_there() -> None:
    for rule in RULES:
        for name in re.findall(r"\bsluiceway_\w+", " ".join(rule["annotations"].values())):
            assert name in SAMPLES, f"{rule['alert']} speaks of {name}"


def test_a_mistake_would_be_found() -> None:
    """The check of the checks."""
    assert mistakes_in("rate(sluiceway_no_such_total[5m]) > 0") == ["no metric sluiceway_no_such_total"]
    assert mistakes_in('sluiceway_connections{queue="a"}') == ["sluiceway_connections has no label queue"]
    assert mistakes_in("sum by (colour) (sluiceway_connections)") == ["nothing here has the label colour"]
    assert mistakes_in("1 + 1")


def test_prometheus_scrapes_the_broker_and_loads_the_rules() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert all((PROMETHEUS / name).is_file() for name in config["rule_files"])
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "sluiceway"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": ["broker:8161"]}]
