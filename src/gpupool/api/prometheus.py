"""Prometheus metrics as text, generated in slices: a large pool needs a hundred milliseconds for one answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from math import inf

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as PrometheusMetric

from gpupool.services.metrics import catalogue
from gpupool.services.metrics.catalogue import Metric, MetricKind
from gpupool.services.metrics.families import MetricFamily, Row, backup_rows, head_rows, refusal_rows, service_rows
from gpupool.services.pool import PoolServices

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ROWS_AT_ONCE = 500  # about a millisecond
FRESH_S = 1.0  # a younger answer is reused


class Exposition:
    """Answers scrapes. Several scrapers within a second get the same answer."""

    def __init__(self, services: PoolServices) -> None:
        self._services = services
        self._process = ProcessCollector(registry=None)
        self._lock = asyncio.Lock()
        self._text = b""
        self._made_at = float("-inf")
        self._took_s = 0.0

    async def text(self) -> bytes:
        """Return all metrics."""
        async with self._lock:
            if time.monotonic() - self._made_at >= FRESH_S:
                self._text = await self._make()
                self._made_at = time.monotonic()
            return self._text

    def forget(self) -> None:
        """Generate the next answer again instead of using the stored one."""
        self._made_at = float("-inf")

    async def _make(self) -> bytes:
        pieces: list[bytes] = []
        spent_s = 0.0
        began = time.perf_counter()
        metrics = self._services.metrics
        for family in metrics.pool_rows(self._services.info):
            pieces.extend(written(family))
        of_services = (
            *head_rows(self._services.joining.heads),
            *backup_rows(self._services.backups.health),
            *refusal_rows(self._services.refusals.totals),
            *service_rows(self._services.serving.views()),
        )
        for family in of_services:
            pieces.extend(written(family))
        pieces.extend(written(MetricFamily(catalogue.SCRAPE, [((), self._took_s)])))
        pieces.append(generate_latest(self._process))
        async for family in metrics.families():
            for piece in written(family):
                pieces.append(piece)
                spent_s += time.perf_counter() - began
                await asyncio.sleep(0)
                began = time.perf_counter()
        self._took_s = spent_s
        return b"".join(pieces)


class _Only:
    """Return a collector of one metric."""

    def __init__(self, metric: PrometheusMetric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[PrometheusMetric]:
        yield self._metric


def written(family: MetricFamily) -> Iterator[bytes]:
    """Yield one metric's text in pieces; the first piece has its description. A metric without rows yields nothing."""
    if family.histograms:
        yield generate_latest(_Only(_histogram(family)))
    for begin in range(0, len(family.rows), ROWS_AT_ONCE):
        head = generate_latest(_Only(_described(family.metric))) if begin == 0 else b""
        yield head + _lines(family.metric, family.rows[begin : begin + ROWS_AT_ONCE])


def _lines(metric: Metric, rows: Sequence[Row]) -> bytes:
    """Format rows as text. The library needs ten times as long, and a large pool has ten thousand rows."""
    frame = ",".join(f'{label}="%s"' for label in metric.labels)
    frame = f"{metric.name}{{{frame}}} %r\n" if frame else f"{metric.name} %r\n"
    return "".join([frame % (*map(escaped, labels), float(value)) for labels, value in rows]).encode()


def escaped(text: str) -> str:
    """Return an escaped label value."""
    if text.isalnum():
        return text
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _histogram(family: MetricFamily) -> PrometheusMetric:
    found = HistogramMetricFamily(family.metric.name, family.metric.about, labels=family.metric.labels)
    for labels, value in family.histograms:
        buckets = [("+Inf" if bound == inf else repr(bound), count) for bound, count in value.buckets()]
        found.add_metric(labels, buckets, value.total)
    return found


def _described(metric: Metric) -> PrometheusMetric:
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.about, labels=metric.labels)
