"""Sample answers of a pool, for commands that display them."""

from __future__ import annotations

from typing import Any

from cli_fake_pool import NOW, Json, workload_view


def pool_view(**changes: Any) -> Json:
    return {
        "version": "0.1.0",
        "pool_id": "p1",
        "kind": "user",
        "started_at": NOW,
        "state_dir": "/tmp/state",
        "emulated": False,
        "warnings": [],
        "nodes": 1,
        "nodes_up": 1,
        "gpus": 2,
        "gpu_permille_total": 2000,
        "gpu_permille_allocated": 600,
        "queued": 1,
        "running": 1,
        "listen": None,
    } | changes


def gpu_view(index: int = 0, **changes: Any) -> Json:
    return {
        "uuid": f"GPU-{index}",
        "node": "gpu1",
        "index": index,
        "model": "Tesla T4",
        "memory_mib": 15360,
        "emulated": False,
        "pci_bus_id": "0000:3b:00.0",
        "health": "ok",
        "health_note": "",
        "links": {"1": "NV4"},
        "mig_profile": "",
        "parent_uuid": "",
        "foreign": [],
        "memory_used_mib": 1024,
        "utilisation_percent": 34,
        "allocated_permille": 600,
        "allocated_memory_mib": 9216,
        "available": True,
        "holders": [
            {
                "workload": "w0000000001",
                "name": "train-1",
                "index": 0,
                "user": "ann",
                "project": "default",
                "permille": 600,
                "memory_mib": 9216,
                "since": NOW,
                "sharing": "share",
                "compute": "guarantee",
            }
        ],
        "sharing": "share",
        "sharing_policy": None,
    } | changes


def busy_gpu() -> Json:
    strange = {"pid": 77, "user": "root", "name": "Xorg", "memory_mib": 200}
    return gpu_view(1, allocated_permille=0, allocated_memory_mib=0, available=False, foreign=[strange], holders=[])


def node_view(**changes: Any) -> Json:
    return {
        "name": "gpu1",
        "state": "up",
        "cordon_reason": "",
        "cpus": 8.0,
        "memory_mib": 65536,
        "emulated": False,
        "agent_version": "0.1.0",
        "driver_version": "550.54",
        "cuda_version": "12.4",
        "labels": {"rack": "3"},
        "warnings": [],
        "gpus": [gpu_view(), busy_gpu()],
        "address": "10.0.0.1",
        "capacity": {"gpus": 2, "cpus": 8.0, "memory_mib": 65536},
        "allocatable": {"gpus": 2, "cpus": 8.0, "memory_mib": 65536},
        "silent_s": None,
        "cpus_allocated": 2.0,
        "memory_allocated_mib": 4096,
        "sharing": ["share", "advisory"],
        "sharing_policy": None,
    } | changes


def project_view(**changes: Any) -> Json:
    return {
        "name": "team-a",
        "quota_permille": 2500,
        "over_quota": True,
        "limit_permille": None,
        "user_limit_permille": None,
        "members": ["ann"],
        "max_time_s": None,
        "idle_timeout_s": 3600.0,
        "note": "",
        "allocated_permille": 600,
        "queued": 1,
        "compute_default": None,
        "compute_allowed": [],
        "sharing_default": None,
        "sharing_allowed": [],
        "department": "",
        "weight": 1.0,
        "model_quotas": {},
        "rules": {
            "min_runtime_s": None,
            "max_time_limit_s": 43_200.0,
            "windows": ["nights"],
            "node_pools": ["a100"],
            "max_gpus_permille": None,
        },
    } | changes


def event_view(**changes: Any) -> Json:
    return {
        "id": 7,
        "at": NOW,
        "actor": "ann",
        "reason": "STARTED",
        "message": "It runs on gpu1.",
        "workload": "w0000000001",
        "index": 0,
        "target": "",
    } | changes


def token_view(**changes: Any) -> Json:
    return {
        "id": "ab12",
        "user": "ann",
        "role": "member",
        "created_at": NOW,
        "expires_at": NOW + 86400,
        "revoked_at": None,
        "last_used_at": None,
        "note": "laptop",
    } | changes


def queued_view() -> Json:
    reason = {"code": "NO_CAPACITY", "message": "It needs 0.50 GPU; 0.30 is free."}
    return workload_view("w0000000002", name="wait-1", state="queued", started_at=None, node=None, reason=reason)


USER = {
    "name": "ann",
    "role": "admin",
    "uid": 1000,
    "gpu_limit_permille": 2000,
    "disabled": False,
    "email": "ann@example.org",
}
USAGE = {
    "since": NOW,
    "until": NOW + 3600,
    "rows": [
        {"project": "default", "user": "ben", "gpu_seconds": 1800.0, "leases": 2},
        {"project": "team-a", "user": "ann", "gpu_seconds": 7200.0, "leases": 1},
    ],
}
TOP = {
    "at": NOW,
    "nodes": [
        {
            "name": "gpu1",
            "state": "up",
            "cordon_reason": "",
            "cpus": 8,
            "cpus_used": 1.5,
            "memory_mib": 65536,
            "memory_used_mib": 4096,
            "gpus": [],
        }
    ],
    "workloads": [],
    "workloads_left_out": 0,
    "users": [],
}
ANSWERS: Json = {
    "GET /v1/top": TOP,
    "GET /v1/health": {"status": "ok", "version": "0.1.0", "pool_id": "p1", "pid": 1},
    "GET /v1/pool": pool_view(),
    "GET /v1/gpus": {"gpus": [gpu_view(), busy_gpu()]},
    "GET /v1/nodes": {"nodes": [node_view()]},
    "GET /v1/nodes/gpu1": node_view(),
    "GET /v1/workloads": {"workloads": [queued_view(), workload_view("w0000000001")], "next_cursor": None},
    "GET /v1/projects": {"projects": [project_view(), project_view(name="default", quota_permille=None, members=[])]},
    "GET /v1/events": {"events": [event_view()]},
    "GET /v1/users": {"users": [USER]},
    "GET /v1/tokens": {"tokens": [token_view(), token_view(id="cd34", revoked_at=NOW)]},
    "GET /v1/usage": USAGE,
    "GET /v1/whoami": {"user": "ann", "role": "admin", "via": "uid 1000", "uid": 1000, "projects": ["default"]},
}


def plan_view(**changes: Any) -> Json:
    start = {"index": 0, "node": "gpu1", "gpus": [{"uuid": "GPU-0", "index": 0, "permille": 500, "memory_mib": 8000}]}
    return {
        "name": "x",
        "kind": "training",
        "project": "default",
        "preemptible": True,
        "gpus": {"count": 1, "permille": 500, "memory_mib": None, "models": [], "labels": {}},
        "max_time_s": None,
        "completions": 1,
        "asked": 1,
        "starts_now": True,
        "starts": [start | {"sharing": "share"}],
        "why": None,
        "displaced": [],
    } | changes
