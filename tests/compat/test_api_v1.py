"""Version 1 of the HTTP API stays stable: additions are allowed, removals and changes are not.

Record additions, so that their removal is found, too: ``python tests/compat/api_v1.py tests/compat/recorded_v1.json``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from api_v1 import Json, breaks, recorded

RECORDED: Json = json.loads((Path(__file__).parent / "recorded_v1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def present() -> Json:
    return recorded()


def test_version_1_has_everything_that_was_recorded(present: Json) -> None:
    assert breaks(RECORDED, present) == []


# The comparison itself


def remove_operation(new: Json) -> None:
    del new["operations"]["GET /v1/pool"]


def rename_operation(new: Json) -> None:
    new["operations"]["GET /v1/pool"]["id"] = "pool"


def remove_parameter(new: Json) -> None:
    del new["operations"]["GET /v1/workloads"]["parameters"]["query state"]


def require_parameter(new: Json) -> None:
    new["operations"]["GET /v1/workloads"]["parameters"]["query state"]["required"] = True


def add_required_parameter(new: Json) -> None:
    new["operations"]["GET /v1/pool"]["parameters"]["query x"] = {"required": True, "types": ["string"]}


def remove_state(new: Json) -> None:
    new["schemas"]["WorkloadState"]["properties"][""].remove("=queued")


def remove_property(new: Json) -> None:
    del new["schemas"]["ProjectView"]["properties"]["note"]


def make_answer_null(new: Json) -> None:
    new["schemas"]["ProjectView"]["properties"]["note"] = ["null", "string"]


def require_field(new: Json) -> None:
    new["schemas"]["ProjectBody"]["required"].append("note")


def remove_answer(new: Json) -> None:
    del new["operations"]["POST /v1/projects"]["answers"]["201"]


@pytest.mark.parametrize(
    "change",
    [
        remove_operation,
        rename_operation,
        remove_parameter,
        require_parameter,
        add_required_parameter,
        remove_state,
        remove_property,
        make_answer_null,
        require_field,
        remove_answer,
    ],
)
def test_breaking_change_is_found(change: Callable[[Json], None]) -> None:
    new = copy.deepcopy(RECORDED)
    change(new)
    assert breaks(RECORDED, new)


def test_addition_is_accepted() -> None:
    new = copy.deepcopy(RECORDED)
    new["operations"]["GET /v1/more"] = copy.deepcopy(new["operations"]["GET /v1/pool"])
    new["schemas"]["ProjectView"]["properties"]["more"] = ["string"]
    new["operations"]["GET /v1/pool"]["parameters"]["query x"] = {"required": False, "types": ["string"]}
    assert breaks(RECORDED, new) == []
