"""The environment of Ray's processes: settings of an administrator, and timeouts for a busy machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpupool.daemon.process.spawn import pool_environment
from gpupool.fabric.ray.environment import Secrets, ray_variables, set_variables


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the environment of this process as it was."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_ray_start_timeouts_are_longer_than_ray_defaults(tmp_path: Path) -> None:
    set_variables(ray_variables(Secrets(tmp_path), tmp_path))
    defaults = {
        "RAY_agent_register_timeout_ms": 100_000,
        "RAY_gcs_rpc_server_connect_timeout_s": 5,
        "RAY_gcs_server_port_wait_time_s": 120,
        "RAY_py_gcs_connect_timeout_s": 30,
    }
    for name, default in defaults.items():
        assert int(os.environ[name]) > default, name


def test_administrator_can_set_other_ray_settings(tmp_path: Path) -> None:
    os.environ |= {
        "GPUPOOL_RAY_health_check_timeout_ms": "20000",
        "GPUPOOL_RAY_py_gcs_connect_timeout_s": "77",
        "GPUPOOL_RAY_USE_TLS": "0",
        "RAY_ADDRESS": "another:6379",
    }
    set_variables(ray_variables(Secrets(tmp_path), tmp_path))
    found = dict(os.environ)
    assert found["RAY_health_check_timeout_ms"] == "20000"
    assert found["RAY_py_gcs_connect_timeout_s"] == "77"
    assert found["RAY_USE_TLS"] == "1"
    assert "RAY_ADDRESS" not in found


def test_pool_inherits_ray_settings_of_its_starter() -> None:
    kept = pool_environment({"GPUPOOL_RAY_health_check_timeout_ms": "20000", "RAY_ADDRESS": "another:6379"})
    assert kept == {"GPUPOOL_RAY_health_check_timeout_ms": "20000"}
