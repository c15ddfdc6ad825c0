# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prometheus and node_exporter accept our metrics, alerts and dashboard."""

from __future__ import annotations

import http
import json
import math
import os
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from journalkeeper.execute.whole_file import write_whole
from journalkeeper.metrics import publisher
from journalkeeper.metrics.prometheus import FAMILIES, PREFIX, Facts, render
from journalkeeper.model.recorded import Counters
from tests import figures
from tests.adapters.command import need, ran
from tests.nobody import NOBODY
from tests.patience import eventually

PROMETHEUS = Path(__file__).parent.parent.parent / "configs/prometheus"
RULES, TESTS = PROMETHEUS / "journalkeeper.rules.yml", PROMETHEUS / "journalkeeper.test.yml"
DASHBOARD = PROMETHEUS / "journalkeeper-dashboard.json"
PAGE = PROMETHEUS.parent / "man/journalkeeper-fleet.7.in"
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
@pytest.mark.parametrize("facts", [figures.FACTS, Facts(succeeded=False), Facts(succeeded=False, counters=Counters())])
def test_promtool_has_nothing_to_say_against_any_metric(facts: Facts) -> None:
    done = promtool("check", "metrics", said=render(facts))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def exporter(open_directory: Path) -> Iterator[str]:
    """The address of a node_exporter that reads `open_directory`, as nobody where that can be."""
    need("prometheus-node-exporter")
    words = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={open_directory}"]
    with subprocess.Popen(
        ["prometheus-node-exporter", *words, "--web.listen-address=127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
        user=NOBODY if os.geteuid() == 0 else None,
    ) as process:
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if found := re.search(r'"Listening on" address=(\S+)', line):
                    yield f"http://{found[1]}/metrics"
                    break
            else:
                pytest.fail("".join(said))
        finally:
            process.terminate()


# the alerts


@pytest.mark.slow
def test_promtool_takes_the_rules_and_their_tests_pass() -> None:
    checked = promtool("check", "rules", RULES)
    assert (checked.returncode, f"{len(ALERTS)} rules found" in checked.stdout) == (0, True), checked.stderr
    tested = promtool("test", "rules", TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_its_paragraph_in_the_manual() -> None:
    text = PAGE.read_text()
    assert [alert for alert in ALERTS if f"\n.B {alert}\n" not in text] == []
    assert set(re.findall(r"Journalkeeper[A-Z]\w+", text)) == set(ALERTS)


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


def test_every_variable_is_defined_and_the_data_source_is_the_readers_choice() -> None:
    text = DASHBOARD.read_text()
    defined = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == defined
    for panel in dashboard()["panels"]:
        assert [target["datasource"]["uid"] for target in panel["targets"]] == ["${datasource}"] * len(panel["targets"])


# a real Prometheus


@pytest.fixture
def prometheus(tmp_path: Path, exporter: str) -> Iterator[str]:
    """The address of a Prometheus that loads the shipped rules and scrapes the exporter each second."""
    need("prometheus")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    scrape = {"job_name": "node", "static_configs": [{"targets": [urlsplit(exporter).netloc]}]}
    config = tmp_path / "prometheus.yml"
    config.write_text(  # JSON is YAML
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [scrape],
            }
        )
    )
    words = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address={address}"]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(["prometheus", *words], stderr=log) as process:
        try:
            yield f"http://{address}/api/v1"
        finally:
            process.terminate()


def ask(api: str, path: str, **parameters: str) -> Any:
    """The data of one answer of Prometheus; None while it does not answer yet."""
    try:
        with urllib.request.urlopen(f"{api}/{path}?{urlencode(parameters)}", timeout=30) as answer:  # noqa: S310 - our own
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:  # it replays its log first
            return None
        pytest.fail(f"{parameters}: {error.read().decode()}")
    except OSError:
        return None


def evaluate(api: str, panel: str) -> Any:
    """The rows that a panel's expression gives for all hosts."""
    return ask(api, "query", query=panel.replace("$job", ".*").replace("$instance", ".*"))["result"]


def count_samples(api: str, metric: str) -> int:
    """Return how often Prometheus has scraped a metric of its one host; 0 before the first time."""
    found = ask(api, "query", query=f"{metric}[1m]")
    return len(found["result"][0]["values"]) if found and found["result"] else 0


@pytest.mark.slow
def test_a_real_prometheus_answers_every_panel_and_sees_an_unhealthy_host(
    open_directory: Path, prometheus: str
) -> None:
    """It takes long because a rate needs two scrapes, one second apart, after the start of Prometheus."""
    target = publisher.target(str(open_directory))
    write_whole("write", target, render(figures.FACTS._replace(healthy=False)), mode=publisher.MODE)
    assert eventually(lambda: count_samples(prometheus, "journalkeeper_healthy") > 2)
    for panel in dashboard()["panels"]:
        for wanted in panel["targets"]:
            found = evaluate(prometheus, wanted["expr"])
            assert [row for row in found if not math.isnan(float(row["value"][1]))], panel["title"]
    (unhealthy,) = (panel for panel in dashboard()["panels"] if panel["title"] == "Not healthy")
    assert evaluate(prometheus, unhealthy["targets"][0]["expr"])[0]["value"][1] == "1"
    pending = {alert["labels"]["alertname"] for alert in ask(prometheus, "alerts")["alerts"]}
    assert "JournalkeeperFailing" in pending
