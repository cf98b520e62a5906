"""A real Prometheus with a real pool, the queries of the dashboard and the alerts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_server import ALERTS, Scraped

from gpupool.services.metrics.catalogue import CATALOGUE, MetricKind

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "docs" / "grafana").glob("*.json"))
pytestmark = pytest.mark.needs("prometheus", "promtool")


def text_of(monitored: Scraped) -> str:
    transport = httpx2.HTTPTransport(uds=str(monitored.pool.run / "api.sock"))
    with httpx2.Client(transport=transport, base_url="http://pool") as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.text


def test_promtool_accepts_the_metrics(monitored: Scraped) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text_of(monitored), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == ""


def test_all_exported_metrics_are_in_the_catalogue(monitored: Scraped) -> None:
    told = set(re.findall(r"^# TYPE (\S+) (\S+)$", text_of(monitored), re.MULTILINE))
    own = {(name, kind) for name, kind in told if not name.startswith("process_")}
    assert own <= {(metric.name, str(metric.kind)) for metric in CATALOGUE}
    assert ("gpupool_project_gpu_allocated_seconds_total", "counter") in own


def test_prometheus_scrapes_the_pool(monitored: Scraped) -> None:
    assert monitored.number("count(gpupool_gpu_info)") == 2
    assert monitored.number("sum(gpupool_gpu_allocated_ratio)") == 1.5
    assert monitored.number('gpupool_project_gpus_allocated{project="default"}') == 1.5
    assert monitored.number('gpupool_project_replicas_waiting{project="default"}') == 1
    assert monitored.number('gpupool_workloads{state="running", kind="training"}') == 2
    assert monitored.number('gpupool_workload_gpus_allocated{name="busy"}') == 0.5
    assert monitored.number("gpupool_node_up") == 1


def test_gpu_seconds_equal_the_leases(monitored: Scraped) -> None:
    name = 'gpupool_project_gpu_allocated_seconds_total{project="default"}'
    (row,) = monitored.query(f"{name} and timestamp({name})")
    moment = {"time": str(row["value"][0])}
    at, took_s, value = (
        float(monitored.ask("query", query=asked, **moment)["result"][0]["value"][1])
        for asked in (f"timestamp({name})", "scrape_duration_seconds", name)
    )
    leases = [lease for job in ("busy", "wide") for lease in monitored.pool.json("describe", job)["leases"]]
    held = sum(sum(s["permille"] for s in one["shares"]) / 1000 * (at - one["granted_at"]) for one in leases)
    assert value == pytest.approx(held, abs=1.5 * (1 + took_s))  # 1.5 GPUs; an answer may be a second old


def test_metrics_equal_the_api(monitored: Scraped) -> None:
    projects = {p["name"]: p for p in monitored.pool.json("list", "projects")["projects"]}
    for row in monitored.query("gpupool_project_gpus_allocated"):
        assert float(row["value"][1]) * 1000 == projects[row["metric"]["project"]]["allocated_permille"]


def expressions() -> list[str]:
    found = []
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            found += [target["expr"] for target in panel.get("targets", ())]
    return found


def filled(expression: str) -> str:
    """Return the query that Grafana sends with all values selected."""
    names = ("$project", "$node", "$workload", "$user")
    for variable, value in (*((name, ".*") for name in names), ("$__rate_interval", "1m"), ("$__range", "1h")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def test_every_dashboard_query_works_with_existing_metrics(monitored: Scraped) -> None:
    known = {metric.name for metric in CATALOGUE}
    known |= {f"{m.name}_bucket" for m in CATALOGUE if m.kind is MetricKind.HISTOGRAM}
    for expression in expressions():
        monitored.query(filled(expression))
        assert set(re.findall(r"\bgpupool_\w+", expression)) <= known, expression
    assert monitored.query(filled(next(e for e in expressions() if "gpupool_workload_gpus_allocated" in e)))


def test_metrics_of_gpus_join_with_those_of_dcgm_exporter(monitored: Scraped) -> None:
    """DCGM exporter has the label UUID; here the GPUs' own metrics stand for its series."""
    uuids = "gpupool_gpu_utilisation_ratio * on(node, gpu) group_left(uuid) gpupool_gpu_info"
    dcgm = f'label_replace({uuids}, "UUID", "$1", "uuid", "(.*)")'
    found = monitored.query(f"gpupool_gpu_holder_ratio * on(UUID) group_left() ({dcgm} ^ 0)")
    assert {(row["metric"]["name"], float(row["value"][1])) for row in found} == {("busy", 0.5), ("wide", 1.0)}
    assert monitored.number('count(gpupool_workload_info{name="busy", kind="training"})') == 1


def test_dashboards_are_four(monitored: Scraped) -> None:
    assert [file.stem for file in DASHBOARDS] == ["gpupool", "job", "node", "user"]
    job = json.loads(DASHBOARDS[1].read_text())
    shown = [e for panel in job["panels"] for e in [t["expr"] for t in panel.get("targets", ())] if "holder" in e]
    assert all(monitored.query(filled(expression)) for expression in shown if "utilisation" in expression)


def test_every_alert_is_loaded_and_inactive(monitored: Scraped) -> None:
    rules = monitored.ask("rules")["groups"][0]["rules"]
    assert len(rules) == ALERTS.read_text().count("- alert:")
    for rule in rules:
        assert rule.get("lastError", "") == ""
        assert rule["health"] in {"ok", "unknown"}
        monitored.query(rule["query"])
    firing = {alert["labels"]["alertname"] for alert in monitored.ask("alerts")["alerts"] if alert["state"] == "firing"}
    assert firing <= {"GpupoolDiskFull"}  # whether this machine's disk is full is not the pool's doing


@pytest.mark.parametrize("token", ["", "gpt_wrong_secret"])
def test_metrics_need_a_token(monitored: Scraped, token: str) -> None:
    target = monitored.ask("targets")["activeTargets"][0]["scrapeUrl"]
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with httpx2.Client(verify=False, headers=headers) as client:
        answer = client.get(target)
    assert answer.status_code == 401
    assert "gpupool_" not in answer.text


def test_alert_rules_fire_as_expected() -> None:
    cases = Path(__file__).with_name("alerts_cases.yml")
    done = subprocess.run(["promtool", "test", "rules", str(cases)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_each_alert_has_a_case(monitored: Scraped) -> None:
    cases = Path(__file__).with_name("alerts_cases.yml").read_text()
    for rule in monitored.ask("rules")["groups"][0]["rules"]:
        assert cases.count(f"alertname: {rule['name']}") >= 2, rule["name"]


@pytest.mark.parametrize("script", ["metrics-docs", "grafana-dashboard"])
def test_generated_files_are_current(script: str) -> None:
    words: list[Any] = [sys.executable, ROOT / "scripts" / script, "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
