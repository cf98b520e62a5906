import pytest

from gpupool.daemon.config import PoolConfig
from gpupool.daemon.control_plane import machine_zone
from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.time_windows import read_zone


@pytest.mark.parametrize(("tz", "found"), [("Europe/Berlin", "Europe/Berlin"), ("UTC", "UTC")])
def test_environment_sets_the_time_zone(monkeypatch: pytest.MonkeyPatch, tz: str, found: str) -> None:
    monkeypatch.setenv("TZ", tz)
    assert machine_zone() == found


@pytest.mark.parametrize("tz", ["", ":/etc/localtime", "Nowhere/City"])
def test_invalid_time_zones_are_skipped(monkeypatch: pytest.MonkeyPatch, tz: str) -> None:
    monkeypatch.setenv("TZ", tz)
    read_zone(machine_zone())


def test_pool_is_not_started_with_invalid_time_zone() -> None:
    assert PoolConfig("/s", "/r", time_zone="Europe/Berlin").time_zone == "Europe/Berlin"
    with pytest.raises(GpupoolError):
        PoolConfig("/s", "/r", time_zone="Nowhere/City")
