"""The dashboard and the alerts in docs/examples name what Prometheus is given, and all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from sinkfence import errors, observe

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
[GROUP] = yaml.safe_load((EXAMPLES / "prometheus-alerts.yaml").read_text())["groups"]
SHOWN = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ALERTS = [rule["expr"] for rule in GROUP["rules"]]
OF_A_SCRAPE = {"job", "instance"}
"""Labels that Prometheus adds to whatever it fetches."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, everything: Callable[[], None]) -> Iterator[dict[str, set[str]]]:
    """The labels of each series that OpenTelemetry's exporter gives Prometheus."""
    registry = CollectorRegistry()
    meters = MeterProvider(metric_readers=[PrometheusMetricReader(registry=registry)])
    monkeypatch.setattr("opentelemetry.metrics.get_meter", meters.get_meter)
    observe._telemetry.cache_clear()
    everything()
    labels: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.startswith("target_"):
                labels.setdefault(sample.name, set()).update(sample.labels)
    yield labels
    observe._telemetry.cache_clear()
    meters.shutdown()


def named(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The series that a PromQL expression names, each with the labels that it is chosen or grouped by."""
    grouped = {
        label for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.split(r",\s*", group)
    }
    rest = re.sub(r"\bby \([^)]*\)", "", expression)
    for series, chosen in re.findall(r"(sinkfence_\w+)(?:\{([^}]*)\})?", rest):
        yield series, grouped | set(re.findall(r"(\w+)\s*[=!]", chosen))


@pytest.mark.parametrize("expressions", [SHOWN, ALERTS], ids=["dashboard", "alerts"])
def test_what_is_named_is_there(given: dict[str, set[str]], expressions: list[str]) -> None:
    """Each series is one that the library gives Prometheus, and has the labels that it is asked for by."""
    for expression in expressions:
        found = list(named(expression))
        assert found, expression
        for series, labels in found:
            assert series in given, expression
            assert labels <= given[series] | OF_A_SCRAPE, expression


def test_the_page_has_the_names_that_are_given(given: dict[str, set[str]]) -> None:
    """Each series and label on the how-to page is there, under that name."""
    page = (EXAMPLES.parent / "how-to" / "observe.md").read_text()
    found = set(re.findall(r"\bsinkfence_\w+", page))
    assert found & given.keys()
    assert found <= given.keys() | set().union(*given.values())


def test_what_is_there_is_shown(given: dict[str, set[str]]) -> None:
    """The dashboard shows every series, and groups by or chooses with every label of ours."""
    shown = {series for expression in SHOWN for series, _ in named(expression)}
    assert shown == given.keys()
    labels = {label for expression in SHOWN for _, found in named(expression) for label in found}
    ours = {label for found in given.values() for label in found if not label.startswith("otel_scope_")}
    assert labels == ours


def test_names_in_texts_are_labels_of_the_query(given: dict[str, set[str]]) -> None:
    """What a legend or an alert's text puts in is a label that its expression leaves."""
    texts = [
        (target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    texts += [(rule["expr"], rule["annotations"]["summary"]) for rule in GROUP["rules"]]
    for expression, text in texts:
        inserted = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
        [kept, *_] = [
            labels if "sum" in expression else given[series] | OF_A_SCRAPE
            for series, labels in named(expression)
        ]
        assert inserted <= kept, text


def test_reasons_are_errors() -> None:
    """Each `error_type` that is asked for is the name of an error of ours."""
    asked = {name for text in SHOWN + ALERTS for name in re.findall(r'error_type="(\w+)"', text)}
    assert asked
    assert {name for name in asked if not hasattr(errors, name)} == set()


def test_the_dashboard_can_be_imported() -> None:
    """It is of Grafana's classic model: known by its uid, panels apart, each on the source that is chosen."""
    assert DASHBOARD["id"] is None
    assert DASHBOARD["uid"]
    assert DASHBOARD["schemaVersion"] >= 36  # data sources by uid
    [variable] = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    source = {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        covers = {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        assert taken.isdisjoint(covers)
        taken |= covers
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
