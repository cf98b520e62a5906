"""Catalogue of all metrics: name, kind, labels and meaning. ``docs/metrics-list.md`` is generated from this table."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class MetricKind(StrEnum):
    """The metric types of Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. Counters are named ``..._total``; units are the base units of Prometheus; ratios are from 0 to 1."""

    name: str
    kind: MetricKind
    about: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Section:
    """The metrics of one section of ``docs/metrics-list.md``, in order; each method adds one and returns it."""

    title: str
    metrics: list[Metric] = field(default_factory=list)

    def gauge(self, name: str, about: str, *labels: str) -> Metric:
        """Add a value that can rise and fall."""
        return self._add(Metric(f"gpupool_{name}", MetricKind.GAUGE, about, labels))

    def counter(self, name: str, about: str, *labels: str) -> Metric:
        """Add a value that only rises; its name ends with ``_total``."""
        return self._add(Metric(f"gpupool_{name}_total", MetricKind.COUNTER, about, labels))

    def histogram(self, name: str, about: str, *labels: str) -> Metric:
        """Add a distribution of values."""
        return self._add(Metric(f"gpupool_{name}", MetricKind.HISTOGRAM, about, labels))

    def _add(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        return metric


_POOL = _Section("The pool")
INFO = _POOL.gauge("info", "1; the pool's version and identity are in the labels.", "version", "pool_id", "kind")
STARTED = _POOL.gauge("start_time_seconds", "When this control plane was started, since the epoch.")
DISK_SIZE = _POOL.gauge("disk_size_bytes", "Size of the file system that holds the pool's state.")
DISK_FREE = _POOL.gauge("disk_free_bytes", "Free space on it for the pool.")
DATABASE = _POOL.gauge("database_size_bytes", "Size of the pool's database with its log of writes.")
BACKUP = _POOL.gauge(
    "backup_last_success_timestamp_seconds",
    "When the newest good scheduled backup was made, since the epoch; absent without a schedule or a copy.",
)
BACKUP_EVERY = _POOL.gauge("backup_interval_seconds", "Interval of scheduled backups; absent without a schedule.")
BACKUP_FAILED = _POOL.gauge(
    "backup_failed", "1 while the last scheduled backup failed, else 0; absent without a schedule."
)
CYCLES = _POOL.histogram("scheduling_cycle_seconds", "Time of one scheduling cycle, since the start.")
EVENTS = _POOL.counter("events", "Events since the start, by reason, as in `gpupool events`.", "reason")
WARNINGS = _POOL.counter("warnings", "Warnings sent since the start, by way and result.", "way", "result")
REFUSED = _POOL.counter(
    "refused", "Requests and connections refused since the start because of a limit, by that limit.", "limit"
)
SCRAPE = _POOL.gauge("scrape_duration_seconds", "Time that the control plane spent on the previous scrape.")

HEAD_READY = _POOL.gauge(
    "head_ready", "1 while the head leads or could take over, else 0; absent where only one machine can lead.", "head"
)

_NODES = _Section("Nodes")
NODE_UP = _NODES.gauge("node_up", "1 while the node's agent answers, else 0.", "node")
NODE_CORDONED = _NODES.gauge("node_cordoned", "1 while the node is cordoned, else 0.", "node")
NODE_CPUS = _NODES.gauge("node_cpus", "Processor cores of the node.", "node")
NODE_CPUS_HELD = _NODES.gauge("node_cpus_allocated", "Cores allocated to workloads.", "node")
NODE_CPUS_USED = _NODES.gauge("node_cpus_used", "Cores busy now, including programs outside the pool.", "node")
NODE_MEMORY = _NODES.gauge("node_memory_bytes", "Memory of the node.", "node")
NODE_MEMORY_HELD = _NODES.gauge("node_memory_allocated_bytes", "Memory allocated to workloads.", "node")
NODE_MEMORY_USED = _NODES.gauge(
    "node_memory_used_bytes", "Memory in use now, including programs outside the pool.", "node"
)

_GPUS = _Section("GPUs")
GPU_INFO = _GPUS.gauge("gpu_info", "1; the labels describe the GPU.", "node", "gpu", "uuid", "model")
GPU_AVAILABLE = _GPUS.gauge("gpu_available", "1 if the GPU can be allocated, else 0.", "node", "gpu")
GPU_HEALTH = _GPUS.gauge("gpu_health", "0: healthy; 1: degraded, works but shows errors; 2: failed.", "node", "gpu")
GPU_FOREIGN = _GPUS.gauge("gpu_foreign_processes", "Processes on it that the pool did not start.", "node", "gpu")
GPU_HELD = _GPUS.gauge("gpu_allocated_ratio", "Allocated part of it, 0 to 1.", "node", "gpu")
GPU_HOLDERS = _GPUS.gauge("gpu_holders", "Leases that hold a part of it.", "node", "gpu")
GPU_BUSY = _GPUS.gauge("gpu_utilisation_ratio", "Part of the last sample in which it computed, 0 to 1.", "node", "gpu")
GPU_MEMORY = _GPUS.gauge("gpu_memory_bytes", "Its memory.", "node", "gpu")
GPU_MEMORY_HELD = _GPUS.gauge("gpu_memory_allocated_bytes", "Allocated memory.", "node", "gpu")
GPU_MEMORY_USED = _GPUS.gauge("gpu_memory_used_bytes", "Memory in use.", "node", "gpu")
GPU_PROCESSES = _GPUS.gauge("gpu_processes", "Processes on it.", "node", "gpu")
GPU_POWER = _GPUS.gauge("gpu_power_watts", "Power it draws; absent if not reported.", "node", "gpu")
GPU_TEMPERATURE = _GPUS.gauge("gpu_temperature_celsius", "Its temperature; absent if not reported.", "node", "gpu")
GPU_SM_CLOCK = _GPUS.gauge("gpu_sm_clock_hertz", "Clock of its processors; absent if not reported.", "node", "gpu")
GPU_MEMORY_CLOCK = _GPUS.gauge("gpu_memory_clock_hertz", "Clock of its memory; absent if not reported.", "node", "gpu")

GPU_HOLDER = _GPUS.gauge(
    "gpu_holder_ratio",
    "Part of the GPU that a workload holds, 0 to 1. The label UUID is that of DCGM exporter, for joins.",
    *("UUID", "node", "gpu", "workload", "name", "project", "user"),
)
GPU_XIDS = _GPUS.counter("gpu_xid_errors", "XID errors since the start of the node's agent.", "node", "gpu")
GPU_ECC = _GPUS.counter(
    "gpu_ecc_errors", "Memory errors since the driver was loaded: corrected or uncorrected.", "node", "gpu", "type"
)
GPU_SLOWDOWN = _GPUS.gauge(
    "gpu_slowdown", "1 while clocks are reduced for this reason: power, hardware or thermal.", "node", "gpu", "reason"
)
GPU_PCIE_REPLAYS = _GPUS.counter("gpu_pcie_replays", "Repeated transfers of its PCIe link.", "node", "gpu")
GPU_PCIE_GENERATION = _GPUS.gauge("gpu_pcie_link_generation", "Present generation of its PCIe link.", "node", "gpu")
GPU_PCIE_WIDTH = _GPUS.gauge("gpu_pcie_link_width", "Present number of lanes of its PCIe link.", "node", "gpu")
GPU_NVLINK_ERRORS = _GPUS.counter("gpu_nvlink_errors", "Errors of all its NVLinks.", "node", "gpu")

_PEOPLE = _Section("Projects, users and the queue")
WORKLOADS = _PEOPLE.gauge("workloads", "Workloads that have not ended.", "state", "kind")
WAITS = _PEOPLE.histogram("wait_seconds", "Time from being queued to getting GPUs, since the start.", "kind")

PROJECT_HELD = _PEOPLE.gauge("project_gpus_allocated", "GPUs allocated to the project, slices as fractions.", "project")
PROJECT_IDLE = _PEOPLE.gauge(
    "project_gpus_idle", "GPUs of these held by replicas that have not used them for five minutes.", "project"
)
PROJECT_QUOTA = _PEOPLE.gauge("project_gpus_quota", "Quota of the project; absent without one.", "project")
PROJECT_LIMIT = _PEOPLE.gauge("project_gpus_limit", "GPU limit of the project; absent without one.", "project")
PROJECT_FAIR = _PEOPLE.gauge(
    "project_gpus_fair_share", "Fair share of the project now, as in `gpupool fairshare`.", "project"
)
PROJECT_WAITING = _PEOPLE.gauge("project_replicas_waiting", "Waiting replicas, for any reason.", "project")
PROJECT_RUNNING = _PEOPLE.gauge("project_replicas_running", "Replicas that hold GPUs.", "project")
PROJECT_OLDEST = _PEOPLE.gauge(
    "project_oldest_wait_seconds",
    "Wait of its oldest queued workload without GPUs; suspended ones do not count.",
    "project",
)
PROJECT_SECONDS = _PEOPLE.counter(
    "project_gpu_allocated_seconds",
    "GPU seconds allocated since the pool was created, slices as fractions; continues after restarts.",
    "project",
)
PROJECT_USED_SECONDS = _PEOPLE.counter(
    "project_gpu_used_seconds",
    "GPU seconds of these in which programs computed, summed once a minute; continues after restarts.",
    "project",
)
PROJECT_IDLE_SECONDS = _PEOPLE.counter(
    "project_gpu_idle_seconds",
    "GPU seconds of these of replicas that computed on none of their GPUs; continues after restarts.",
    "project",
)
USER_HELD = _PEOPLE.gauge("user_gpus_allocated", "GPUs allocated to the user.", "user")
USER_IDLE = _PEOPLE.gauge("user_gpus_idle", "GPUs of these that have not been used for five minutes.", "user")
USER_SECONDS = _PEOPLE.counter(
    "user_gpu_allocated_seconds", "GPU seconds allocated since the pool was created; continues after restarts.", "user"
)

_OF_WORKLOAD = ("workload", "name", "project", "user")
_WORKLOADS = _Section("Workloads that hold GPUs")
WORKLOAD_INFO = _WORKLOADS.gauge(
    "workload_info", "1; the labels describe a workload that holds GPUs.", *_OF_WORKLOAD, "kind", "node"
)
WORKLOAD_HELD = _WORKLOADS.gauge("workload_gpus_allocated", "GPUs allocated to a workload now.", *_OF_WORKLOAD)
WORKLOAD_REPLICAS = _WORKLOADS.gauge("workload_replicas_running", "Its replicas that hold GPUs.", *_OF_WORKLOAD)
WORKLOAD_IDLE = _WORKLOADS.gauge(
    "workload_idle_seconds", "Time since any of its replicas used its GPUs.", *_OF_WORKLOAD
)
WORKLOAD_BUSY = _WORKLOADS.gauge(
    "workload_gpus_busy", "GPUs that it kept busy in the last sample period.", *_OF_WORKLOAD
)
WORKLOAD_GPU_MEMORY = _WORKLOADS.gauge("workload_gpu_memory_used_bytes", "GPU memory it uses.", *_OF_WORKLOAD)
WORKLOAD_MEMORY = _WORKLOADS.gauge("workload_memory_used_bytes", "Host memory it uses.", *_OF_WORKLOAD)
WORKLOAD_CPUS = _WORKLOADS.gauge("workload_cpus_used", "Processor cores it keeps busy.", *_OF_WORKLOAD)

_OF_SERVICE = ("project", "service")
_SERVICES = _Section("Services")
SERVICE_REPLICAS = _SERVICES.gauge(
    "service_replicas", "Replicas of the service: ready, starting or draining.", *_OF_SERVICE, "state"
)
SERVICE_DESIRED = _SERVICES.gauge("service_replicas_desired", "Replicas that are wanted now.", *_OF_SERVICE)
SERVICE_IN_FLIGHT = _SERVICES.gauge("service_requests_in_flight", "Requests that replicas answer now.", *_OF_SERVICE)
SERVICE_HELD = _SERVICES.gauge("service_requests_held", "Requests that wait for a ready replica.", *_OF_SERVICE)
SERVICE_REQUESTS = _SERVICES.counter("service_requests", "Requests since the start.", *_OF_SERVICE)
SERVICE_REFUSED = _SERVICES.counter(
    "service_refused", "Requests answered with 503, as no replica was ready, since the start.", *_OF_SERVICE
)
SERVICE_GPU_SECONDS = _SERVICES.counter(
    "service_gpu_allocated_seconds", "GPU seconds allocated to its replicas since the start.", *_OF_SERVICE
)
SERVICE_USER_REQUESTS = _SERVICES.counter(
    "service_user_requests",
    "Requests since the start by user; empty: with a token of the service, or without one.",
    *_OF_SERVICE,
    "user",
)
SERVICE_REQUEST_SECONDS = _SERVICES.counter(
    "service_request_seconds", "Time of requests at replicas since the start, by user.", *_OF_SERVICE, "user"
)
SERVICE_RECEIVED = _SERVICES.counter(
    "service_received_bytes", "Bytes of requests since the start, without heads, by user.", *_OF_SERVICE, "user"
)
SERVICE_SENT = _SERVICES.counter(
    "service_sent_bytes", "Bytes of responses since the start, without heads, by user.", *_OF_SERVICE, "user"
)
SERVICE_ERRORS = _SERVICES.counter(
    "service_errors", "Requests without a complete answer of a replica, since the start.", *_OF_SERVICE
)
SERVICE_FIRST_BYTE = _SERVICES.gauge(
    "service_first_byte_seconds",
    "Time to the first byte of an answer in the last second with answers: median (0.5) and 99th percentile (0.99).",
    *_OF_SERVICE,
    "quantile",
)

SECTIONS = {each.title: tuple(each.metrics) for each in (_POOL, _NODES, _GPUS, _PEOPLE, _WORKLOADS, _SERVICES)}
CATALOGUE: tuple[Metric, ...] = tuple(metric for section in SECTIONS.values() for metric in section)
