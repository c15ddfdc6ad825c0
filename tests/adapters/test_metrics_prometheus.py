# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prometheus accepts our metrics, alerts and dashboard."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.metrics.prometheus import FAMILIES, PREFIX, Facts, render
from journalkeeper.model.run import Counters
from tests import figures
from tests.adapters.command import need, ran

PROMETHEUS = Path(__file__).parent.parent.parent / "configs/prometheus"
RULES, TESTS = PROMETHEUS / "journalkeeper.rules.yml", PROMETHEUS / "journalkeeper.test.yml"
DASHBOARD = PROMETHEUS / "journalkeeper-dashboard.json"
ALERTS = tuple(re.findall(r"(?m)^ +- alert: (\w+)$", RULES.read_text()))
OURS = frozenset(f"{PREFIX}_{family.name}" for family in FAMILIES)
EXPORTERS = frozenset({"node_textfile_mtime_seconds", "node_textfile_scrape_error", "up"})


def promtool(*words: str | Path, said: str | None = None) -> subprocess.CompletedProcess[str]:
    need("promtool")
    return ran("promtool", *words, input=said)


def metrics_in(text: str) -> set[str]:
    """Return the names of metrics in rules, tests and expressions."""
    return set(re.findall(r"\b(?:journalkeeper|node)_[a-z_]+\b", text))


# the metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    "facts", [figures.FACTS, Facts(last_run_success=False), Facts(last_run_success=False, counters=Counters())]
)
def test_promtool_has_nothing_to_say_against_any_metric(facts: Facts) -> None:
    done = promtool("check", "metrics", said=render(facts))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# the alerts


@pytest.mark.slow
def test_promtool_takes_the_rules_and_their_tests_pass() -> None:
    checked = promtool("check", "rules", RULES)
    assert (checked.returncode, f"{len(ALERTS)} rules found" in checked.stdout) == (0, True), checked.stderr
    tested = promtool("test", "rules", TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr


# names


@pytest.mark.parametrize("file", [RULES, TESTS, DASHBOARD], ids=lambda path: path.name)
def test_the_service_exports_every_metric_that_is_asked_for(file: Path) -> None:
    """At a look the service may not ask what a file occupies on disk: that needs CAP_SYS_ADMIN."""
    seen = figures.STATUS._replace(sums={**figures.STATUS.sums, "disk_bytes": None})
    exported = metrics_in(render(figures.FACTS._replace(status=seen)))
    asked = metrics_in(file.read_text())
    assert asked - exported - EXPORTERS == set()
    assert asked & OURS


# the dashboard


def dashboard() -> dict[str, Any]:
    loaded = json.loads(DASHBOARD.read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.slow
def test_promtool_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(expressions)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    checked = promtool("check", "rules", tmp_path / "panels.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_variable_is_defined_and_the_data_source_is_the_readers_choice() -> None:
    text = DASHBOARD.read_text()
    defined = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == defined
    for panel in dashboard()["panels"]:
        assert [target["datasource"]["uid"] for target in panel["targets"]] == ["${datasource}"] * len(panel["targets"])
