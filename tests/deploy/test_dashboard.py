"""The Grafana dashboard: its queries name what there is, what matters is on it, and its panels don't overlap."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml

from sluiceway.metrics.catalogue import FAMILIES
from tests.architecture.sources import ROOT
from tests.deploy.expressions import SAMPLES, metrics_of, mistakes_in

GRAFANA: Final = ROOT / "deploy" / "grafana"
DASHBOARD: Final[dict[str, Any]] = json.loads((GRAFANA / "sluiceway.json").read_text())
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]
QUERIES: Final = [(panel["title"], target) for panel in PANELS for target in panel.get("targets", [])]

LEFT_OUT: Final = {
    "sluiceway_slow_consumers_found_total",
    "sluiceway_slow_consumers_disconnected_total",
    "sluiceway_hub_up",  # alerts say so, here and below
    "sluiceway_link_copies_bytes_total",
    "sluiceway_link_copies_missed_total",
    "sluiceway_link_copies_total",
    "sluiceway_link_up",
    "sluiceway_shards_open",
    "sluiceway_shards_without_owner",
    # What others on it say better, or what is for one destination at a time.
    "sluiceway_destination_bytes",
    "sluiceway_destination_memory_bytes",
    "sluiceway_destination_delayed_messages",
    "sluiceway_destination_consumers",
    "sluiceway_destination_producers",
    "sluiceway_destination_blocked_senders",
    "sluiceway_destinations",
    "sluiceway_destinations_made_total",
    "sluiceway_destinations_deleted_total",
    "sluiceway_durable_attached",
    "sluiceway_durable_away_seconds",
    "sluiceway_log_records",
    "sluiceway_log_waiting_records",
    "sluiceway_log_gaps",
    "sluiceway_log_compacted_records_total",
    "sluiceway_log_compacted_bytes_total",
    "sluiceway_log_blocked_seconds_total",
    "sluiceway_log_group_unacknowledged_records",
    "sluiceway_log_group_consumers",
    "sluiceway_left_behind_bytes",
    "sluiceway_left_behind_dropped_total",
    "sluiceway_store_failing",
    "sluiceway_store_not_paging",
    "sluiceway_store_bytes_max",
    "sluiceway_dispatcher_longest_dispatch_seconds",
    "sluiceway_dispatcher_timers",
    "sluiceway_dispatcher_errors_total",
    "sluiceway_faults_total",  # an alert says so
    "sluiceway_logins_accepted_total",
    "sluiceway_logins_delayed_total",
    "sluiceway_start_timestamp_seconds",
    "sluiceway_draining",
    "process_virtual_memory_bytes",
    "process_start_time_seconds",
}


def plain(expression: str) -> str:
    """With Grafana's own variables filled in."""
    return expression.replace("$__rate_interval", "5m")


def test_every_query_names_only_metrics_and_labels_that_there_are() -> None:
    for title, target in QUERIES:
        assert mistakes_in(plain(target["expr"])) == [], title
        labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        known = {label for name in metrics_of(plain(target["expr"])) for label in SAMPLES[name]}
        assert labels <= known, title


def test_every_metric_of_importance_is_on_it() -> None:
    shown = {name for _title, target in QUERIES for name in metrics_of(plain(target["expr"]))}
    shown |= {
        name for variable in DASHBOARD["templating"]["list"] for name in metrics_of(variable.get("definition", ""))
    }
    missing = {
        family.name
        for family in FAMILIES.values()
        if not shown & set(family.sample_names) and family.name not in LEFT_OUT
    }
    assert not missing
    assert set(FAMILIES) >= LEFT_OUT


def test_rows_come_in_the_order_in_which_one_looks() -> None:
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Who waits", "Flow", "Backlog", "Store", "Connections", "Process"]


def test_panels_lie_side_by_side_and_not_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_every_panel_explains_itself() -> None:
    for panel in PANELS:
        if panel["type"] != "row":
            assert len(panel["description"]) >= 10, panel["title"]
            assert panel["targets"], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_a_data_source_is_asked_for_and_provided() -> None:
    """Imported by hand it asks which one; in compose there is one."""
    assert DASHBOARD["templating"]["list"][0] == {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    sources = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    assert sources["datasources"][0]["type"] == "prometheus"
