"""A real Prometheus that scrapes a real pool over TLS with a viewer's token."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e_pool import RealPool, eventually, fresh_pool

from free_ports import free_port

ALERTS = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "alerts.yml"
WORK = "import time; time.sleep(600)"


@dataclass
class Scraped:
    """The pool, and the address of the Prometheus that watches it."""

    pool: RealPool
    url: str

    def ask(self, path: str, **query: str) -> Any:
        target = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(target, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def number(self, expression: str) -> float:
        (row,) = self.query(expression)
        return float(row["value"][1])


@contextmanager
def scraped() -> Iterator[Scraped]:
    port = free_port()
    with fresh_pool("2xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        pool("submit", "busy", "-g", "0.5", "--", "sleep", "600")
        pool("submit", "wide", "-g", "1", "--", "sleep", "600")
        pool("submit", "waits", "-g", "2", "--", "sleep", "600")
        for name in ("busy", "wide"):
            assert pool.becomes(name, "running")
        pool("user", "set", "prometheus", "--role", "viewer")
        token = pool.text("token", "create", "--user", "prometheus", "--role", "viewer")
        secret = next(word for word in token.split() if word.startswith("gpt_"))
        with prometheus(pool.folder / "prometheus", f"127.0.0.1:{port}", secret, pool.state / "tls/cert.pem") as url:
            made = Scraped(pool, url)
            assert eventually(lambda: ready(made) and made.query("gpupool_workloads"))
            yield made


def ready(made: Scraped) -> bool:
    try:
        return bool(made.query("up == 1"))
    except (OSError, AssertionError):  # it answers "Service Unavailable" until it is ready
        return False


@contextmanager
def prometheus(folder: Path, target: str, secret: str, authority: Path) -> Iterator[str]:
    folder.mkdir()
    (folder / "token").write_text(secret)
    job = {
        "job_name": "gpupool",
        "scheme": "https",
        "authorization": {"credentials_file": str(folder / "token")},
        "tls_config": {"ca_file": str(authority)},
        "static_configs": [{"targets": [target]}],
    }
    wanted = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [job],
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(wanted))  # JSON is YAML
    port = free_port()
    words = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(60)
