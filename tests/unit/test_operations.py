"""What operators are told to watch and to run is there: metrics, alerts, the manifest for Kubernetes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from ingestd.cli.configured import load_configuration
from ingestd.daemon.metrics import Metrics
from ingestd.daemon.statistics import ERROR_KINDS, RouteCounters, SourceGauges, WorkerStatistics
from ingestd.daemon.totals import Totals

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "OPERATIONS.md"
ALERTS = ROOT / "config" / "prometheus" / "alerts.yml"
ALERT_TESTS = Path(__file__).with_name("alerts_test.yml")
DASHBOARD = ROOT / "config" / "grafana" / "mirrors.json"
MANIFEST = ROOT / "config" / "kubernetes" / "daemonset.yaml"

NAMING = [OPERATIONS, ROOT / "README.md", ALERTS, ALERT_TESTS, DASHBOARD]
METRIC = re.compile(r"\bingestd_[a-z_]+")
ALERT = re.compile(r"alert: (\w+)")


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """The names of all metrics of the daemon, as a scrape shows them."""
    _, body = Metrics(Totals()).exposition()
    return {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE ")}


@pytest.mark.parametrize("file", NAMING, ids=lambda file: file.name)
def test_every_metric_that_is_named_is_one(file: Path, metrics: set[str]) -> None:
    named = set(METRIC.findall(file.read_text()))
    assert named
    parts = {f"{name}{part}" for name in metrics for part in ("_bucket", "_sum", "_count")}
    assert named <= metrics | parts


def test_every_metric_is_explained_to_operators(metrics: set[str]) -> None:
    assert metrics <= set(METRIC.findall(OPERATIONS.read_text()))


def expressions() -> list[str]:
    """What the dashboard asks Prometheus for, as Grafana asks."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [each.replace("$__rate_interval", "5m").replace("$route", "a|b") for each in asked]


def test_the_dashboard_shows_each_metric_with_labels_that_it_has() -> None:
    totals = Totals()
    totals.expect("a")
    totals.losses.expect("a", ["retention"])
    totals.reachable["east"] = True
    totals.worker_started(0)
    counters = RouteCounters(records=1)
    counters.count_retry("x")
    gauges = SourceGauges("t-0", 0, 5, 3, 1.5)
    totals.take(WorkerStatistics(0, 1, routes={"a": counters}, sources={("a", "t-0"): gauges}))
    _, body = Metrics(totals).exposition()
    labels: dict[str, set[str]] = {"instance": set(), "job": set()}
    shown = {name: set(re.findall(r'(\w+)="', rest)) for name, rest in re.findall(r"(?m)^(\w+)\{(.*)\}", body.decode())}
    for asked in expressions():
        (name,) = METRIC.findall(asked)
        wanted = {label for part in re.findall(r"by \(([^)]*)\)", asked) for label in part.split(", ")}
        wanted |= set(re.findall(r"(\w+)=~?\"", asked))
        assert name in shown, asked
        assert wanted <= shown[name] | labels.keys(), asked
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            by = re.findall(r"by \(([^)]*)\)", target["expr"])
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert not by or legend <= set(by[-1].split(", ")), panel["title"]


def test_every_alert_is_explained_and_tried_and_no_other() -> None:
    alerts = ALERT.findall(ALERTS.read_text())
    assert len(alerts) == len(set(alerts)) > 5
    assert set(re.findall(r"`(Ingestd\w+)`", OPERATIONS.read_text())) == set(alerts)
    assert set(re.findall(r'alertname="(\w+)"', ALERT_TESTS.read_text())) == set(alerts)


def test_alerts_on_kinds_of_errors_are_on_kinds_that_begin_at_zero() -> None:
    kinds = set(re.findall(r'kind="(\w+)"', ALERTS.read_text()))
    assert sorted(kinds) == sorted(ERROR_KINDS)


def test_every_file_and_heading_that_operators_are_sent_to_is_there() -> None:
    text = OPERATIONS.read_text()
    headings = {re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines()}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, heading = target.partition("#")
        assert (ROOT / file).exists(), target
        assert file or heading in headings, target


@pytest.mark.peers
def test_promtool_understands_what_the_dashboard_asks_for(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is in Debian's package `prometheus`"
    rules = [{"record": f"asked:{number}", "expr": each} for number, each in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    answer = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.peers
def test_promtool_is_content_with_the_alerts_and_each_fires_for_what_it_is_about(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is in Debian's package `prometheus`"
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(ALERT_TESTS, tmp_path)
    for arguments in (["check", "rules", ALERTS.name], ["test", "rules", ALERT_TESTS.name]):
        answer = subprocess.run(
            [promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_manifest_for_kubernetes_fits_the_daemon(tmp_path: Path) -> None:
    manifest = MANIFEST.read_text()
    block = manifest.partition("ingestd.toml: |\n")[2].partition("\n---\n")[0]
    file = tmp_path / "ingestd.toml"
    file.write_text(textwrap.dedent(block))
    configuration = load_configuration(file)
    assert configuration.routes
    daemon = configuration.daemon
    assert daemon.workers > 0
    assert daemon.http == "0.0.0.0:9464"
    assert "containerPort: 9464" in manifest
    assert re.findall(r"httpGet: \{path: (\S+), port: http\}", manifest) == ["/healthz", "/readyz"]
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest)
    assert float(grace) >= daemon.drain_timeout + 20
    assert f"mountPath: {daemon.state}}}" in manifest
    assert f"hostPath: {{path: {daemon.state}, type: DirectoryOrCreate}}" in manifest
