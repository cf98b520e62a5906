"""The section ``service`` of a request."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpupool.specs.fields.service import HeldSpec, ReadySpec, ServiceSpec


def test_null_means_the_default() -> None:
    spec = ServiceSpec.model_validate(
        {"port": None, "ready": {"within": None}, "held": {"time": None}, "body": None, "scale": None}
    )
    assert spec == ServiceSpec()


@pytest.mark.parametrize("held", [{"time": 3601}, {"time": "2h"}, {"requests": -1}, {"unknown": None, "other": 1}])
def test_invalid_limits_of_held_requests_are_refused(held: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HeldSpec.model_validate(held)


def test_durations_may_have_units() -> None:
    assert ReadySpec.model_validate({"within": "10m"}).within == 600
