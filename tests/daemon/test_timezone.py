import pytest

from gpupool.daemon.config import PoolConfig
from gpupool.daemon.timezone import machine_zone
from gpupool.domain.errors import GpupoolError
from gpupool.domain.windows import read_zone


@pytest.mark.parametrize(("tz", "found"), [("Europe/Berlin", "Europe/Berlin"), ("UTC", "UTC")])
def test_the_environment_names_the_zone(monkeypatch: pytest.MonkeyPatch, tz: str, found: str) -> None:
    monkeypatch.setenv("TZ", tz)
    assert machine_zone() == found


@pytest.mark.parametrize("tz", ["", ":/etc/localtime", "Nowhere/City"])
def test_what_is_no_zone_is_passed_over(monkeypatch: pytest.MonkeyPatch, tz: str) -> None:
    monkeypatch.setenv("TZ", tz)
    read_zone(machine_zone())


def test_a_pool_is_not_started_with_a_zone_that_is_none() -> None:
    assert PoolConfig("/s", "/r", time_zone="Europe/Berlin").time_zone == "Europe/Berlin"
    with pytest.raises(GpupoolError):
        PoolConfig("/s", "/r", time_zone="Nowhere/City")
