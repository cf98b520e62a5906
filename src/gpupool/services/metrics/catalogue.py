"""Every metric there is: name, kind, labels, and what it means. ``docs/metrics.md`` is made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What Prometheus may do with a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Counters are named ``..._total``; units are Prometheus' base units, shares are parts of one GPU."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"gpupool_{name}", Kind.GAUGE, about, labels)


def _counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"gpupool_{name}_total", Kind.COUNTER, about, labels)


def _histogram(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"gpupool_{name}", Kind.HISTOGRAM, about, labels)


INFO = _gauge("info", "1; the pool's version and identity are in the labels.", "version", "pool_id", "kind")
STARTED = _gauge("start_time_seconds", "When this control plane was started, since the epoch.")
DISK_SIZE = _gauge("disk_size_bytes", "Size of the file system that holds the pool's state.")
DISK_FREE = _gauge("disk_free_bytes", "What of it is free for the pool.")
DATABASE = _gauge("database_size_bytes", "Size of the pool's database with its log of writes.")
CYCLES = _histogram("scheduling_cycle_seconds", "Time that one look for placements took, since the start.")
EVENTS = _counter("events", "What happened since the start, by reason, as in `gpupool events`.", "reason")
WARNINGS = _counter("warnings", "Warnings sent since the start, by way and by what came of it.", "way", "result")
SCRAPE = _gauge("scrape_duration_seconds", "Time that the control plane spent on the answer before this one.")

NODE_UP = _gauge("node_up", "1 while the node's agent answers, else 0.", "node")
NODE_CORDONED = _gauge("node_cordoned", "1 while the node takes nothing new because an administrator said so.", "node")
NODE_CPUS = _gauge("node_cpus", "Processor cores of the node.", "node")
NODE_CPUS_HELD = _gauge("node_cpus_allocated", "Cores given to work that asked for them.", "node")
NODE_CPUS_USED = _gauge("node_cpus_used", "Cores busy now, whoever uses them.", "node")
NODE_MEMORY = _gauge("node_memory_bytes", "Memory of the node.", "node")
NODE_MEMORY_HELD = _gauge("node_memory_allocated_bytes", "Memory given to work that asked for it.", "node")
NODE_MEMORY_USED = _gauge("node_memory_used_bytes", "Memory in use now, whoever uses it.", "node")

GPU_INFO = _gauge("gpu_info", "1; what the card is, is in the labels.", "node", "gpu", "uuid", "model")
GPU_AVAILABLE = _gauge("gpu_available", "1 if the card itself may be given out, else 0.", "node", "gpu")
GPU_HEALTH = _gauge("gpu_health", "0: well; 1: degraded, works but shows errors; 2: failed.", "node", "gpu")
GPU_FOREIGN = _gauge("gpu_foreign_processes", "Processes on it that the pool did not start.", "node", "gpu")
GPU_HELD = _gauge("gpu_allocated_ratio", "Part of it that is given out, 0 to 1.", "node", "gpu")
GPU_HOLDERS = _gauge("gpu_holders", "Leases that hold a part of it.", "node", "gpu")
GPU_BUSY = _gauge("gpu_utilisation_ratio", "Part of the last moment in which it computed, 0 to 1.", "node", "gpu")
GPU_MEMORY = _gauge("gpu_memory_bytes", "Its memory.", "node", "gpu")
GPU_MEMORY_HELD = _gauge("gpu_memory_allocated_bytes", "Memory given out.", "node", "gpu")
GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", "Memory in use.", "node", "gpu")
GPU_PROCESSES = _gauge("gpu_processes", "Processes on it.", "node", "gpu")
GPU_POWER = _gauge("gpu_power_watts", "Power it draws; absent where the card does not tell.", "node", "gpu")
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", "Its temperature; absent likewise.", "node", "gpu")
GPU_SM_CLOCK = _gauge("gpu_sm_clock_hertz", "Clock of its processors; absent likewise.", "node", "gpu")
GPU_MEMORY_CLOCK = _gauge("gpu_memory_clock_hertz", "Clock of its memory; absent likewise.", "node", "gpu")

WORKLOADS = _gauge("workloads", "Workloads that have not ended.", "state", "kind")
WAITS = _histogram("wait_seconds", "Time from being queued to getting GPUs, since the start.", "kind")

PROJECT_HELD = _gauge("project_gpus_allocated", "GPUs that the project holds, slices as fractions.", "project")
PROJECT_IDLE = _gauge(
    "project_gpus_idle", "GPUs of these held by replicas that have not used them for five minutes.", "project"
)
PROJECT_QUOTA = _gauge("project_gpus_quota", "What it can count on; absent without a quota.", "project")
PROJECT_LIMIT = _gauge("project_gpus_limit", "What it never exceeds; absent without a limit.", "project")
PROJECT_FAIR = _gauge("project_gpus_fair_share", "What it is due now, as in `gpupool fairshare`.", "project")
PROJECT_WAITING = _gauge("project_replicas_waiting", "Replicas that wait, for whatever reason.", "project")
PROJECT_RUNNING = _gauge("project_replicas_running", "Replicas that hold GPUs.", "project")
PROJECT_OLDEST = _gauge(
    "project_oldest_wait_seconds",
    "How long its oldest workload has been queued and got nothing; suspended ones do not count.",
    "project",
)
PROJECT_SECONDS = _counter(
    "project_gpu_allocated_seconds",
    "GPU seconds held since the pool began, slices as fractions; goes on over restarts.",
    "project",
)
PROJECT_USED_SECONDS = _counter(
    "project_gpu_used_seconds",
    "GPU seconds of these that were computed in, as measured and summed once a minute; goes on over restarts.",
    "project",
)
PROJECT_IDLE_SECONDS = _counter(
    "project_gpu_idle_seconds",
    "GPU seconds held by replicas that computed on none of their GPUs, likewise.",
    "project",
)
USER_HELD = _gauge("user_gpus_allocated", "GPUs that the user holds.", "user")
USER_IDLE = _gauge("user_gpus_idle", "GPUs of these that have not been used for five minutes.", "user")
USER_SECONDS = _counter(
    "user_gpu_allocated_seconds", "GPU seconds held since the pool began; goes on over restarts.", "user"
)

_OF_WORKLOAD = ("workload", "name", "project", "user")
WORKLOAD_HELD = _gauge("workload_gpus_allocated", "GPUs that a workload holds now.", *_OF_WORKLOAD)
WORKLOAD_REPLICAS = _gauge("workload_replicas_running", "Its replicas that hold GPUs.", *_OF_WORKLOAD)
WORKLOAD_IDLE = _gauge("workload_idle_seconds", "Time since any of its replicas used its GPUs.", *_OF_WORKLOAD)
WORKLOAD_BUSY = _gauge("workload_gpus_busy", "GPUs' worth of computing that it did in the last moment.", *_OF_WORKLOAD)
WORKLOAD_GPU_MEMORY = _gauge("workload_gpu_memory_used_bytes", "GPU memory it uses.", *_OF_WORKLOAD)
WORKLOAD_MEMORY = _gauge("workload_memory_used_bytes", "Host memory it uses.", *_OF_WORKLOAD)
WORKLOAD_CPUS = _gauge("workload_cpus_used", "Processor cores it keeps busy.", *_OF_WORKLOAD)

SECTIONS: dict[str, tuple[Metric, ...]] = {
    "The pool": (INFO, STARTED, DISK_SIZE, DISK_FREE, DATABASE, CYCLES, EVENTS, WARNINGS, SCRAPE),
    "Nodes": (
        NODE_UP,
        NODE_CORDONED,
        NODE_CPUS,
        NODE_CPUS_HELD,
        NODE_CPUS_USED,
        NODE_MEMORY,
        NODE_MEMORY_HELD,
        NODE_MEMORY_USED,
    ),
    "GPUs": (
        GPU_INFO,
        GPU_AVAILABLE,
        GPU_HEALTH,
        GPU_FOREIGN,
        GPU_HELD,
        GPU_HOLDERS,
        GPU_BUSY,
        GPU_MEMORY,
        GPU_MEMORY_HELD,
        GPU_MEMORY_USED,
        GPU_PROCESSES,
        GPU_POWER,
        GPU_TEMPERATURE,
        GPU_SM_CLOCK,
        GPU_MEMORY_CLOCK,
    ),
    "Projects, users and the queue": (
        WORKLOADS,
        WAITS,
        PROJECT_HELD,
        PROJECT_IDLE,
        PROJECT_QUOTA,
        PROJECT_LIMIT,
        PROJECT_FAIR,
        PROJECT_WAITING,
        PROJECT_RUNNING,
        PROJECT_OLDEST,
        PROJECT_SECONDS,
        PROJECT_USED_SECONDS,
        PROJECT_IDLE_SECONDS,
        USER_HELD,
        USER_IDLE,
        USER_SECONDS,
    ),
    "Workloads that hold GPUs": (
        WORKLOAD_HELD,
        WORKLOAD_REPLICAS,
        WORKLOAD_IDLE,
        WORKLOAD_BUSY,
        WORKLOAD_GPU_MEMORY,
        WORKLOAD_MEMORY,
        WORKLOAD_CPUS,
    ),
}
CATALOGUE: tuple[Metric, ...] = tuple(metric for section in SECTIONS.values() for metric in section)
