"""Forms of administrators and managers: a member is refused before the form is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import structlog
from pool_world import world_in
from web_harness import Site

from gpupool.web.install import ROUTERS

MEMBER_UID = 4711
PLACES = {"index": "0", "name": "default"}
# A member is refused every other form, also an invalid one.
OF_MEMBERS = re.compile(
    r"/(logout|login.*|l/.*|oidc.*|sessions/.*|submit.*|leases.*|tokens.*|workloads.*|workspaces.*|services.*|views.*|users/\{name\}/email)$"
)


def forms() -> list[str]:
    found = {r.path for router in ROUTERS for r in router.routes if "POST" in getattr(r, "methods", ())}  # type: ignore[attr-defined]
    return sorted(found)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("rights")) as world:
        yield Site(world)


@pytest.mark.parametrize("path", [path for path in forms() if not OF_MEMBERS.match(path)])
def test_member_is_refused_before_the_form_is_read(site: Site, path: str) -> None:
    where = re.sub(r"\{(\w+)\}", lambda found: PLACES.get(found[1], "x"), path)
    for form in ({}, {"min_runtime_s": "soon", "mode": "?", "rates": "?", "labels": "?"}):
        assert site.post(where, MEMBER_UID, **form).status_code == 403


def test_settings_forms_check_rights_first() -> None:
    refused = {path for path in forms() if not OF_MEMBERS.match(path)}
    assert {"/settings/policy", "/settings/rates", "/settings/warnings", "/projects/{name}/members"} <= refused
