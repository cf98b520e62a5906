"""Answers of page routes: live looks, notices, errors, forms, and what every page carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any

import pytest
import structlog
from fastapi import APIRouter
from fastapi.params import Query
from pool_world import world_in
from starlette.requests import Request
from starlette.responses import Response
from web_harness import Site, words

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.web.deps import SentForm, Visitor
from gpupool.web.kit.filters import gpus, number, percent, shape, size, tone, with_code
from gpupool.web.kit.response_cache import MAX_AGE_S, ResponseCache
from gpupool.web.rendering import back_to, environment, page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return one site for all tests here: they check answers, not effects in the pool."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("pages")) as world:
        yield Site(world)


@pytest.fixture(scope="module")
def trial(site: Site) -> Site:
    """Return a site with addresses of the test's own."""
    router = APIRouter()

    @router.post("/trial")
    async def post(_visitor: Visitor, form: SentForm) -> Response:
        if form.text("wrong"):
            raise GpupoolError(ErrorCode[form.text("wrong")], "It <b>cannot</b> be.", "Try another.")
        return back_to("/?view=table", notice=f"Did {form.text('what')} to {len(form.all_values('whom'))}.")

    @router.get("/trial")
    async def get(request: Request, visitor: Visitor, broken: Annotated[bool, Query()] = False) -> Response:
        if broken:
            raise RuntimeError("a secret detail")
        return page(request, visitor, "error.html", title="A <trial>", error=GpupoolError(ErrorCode.INTERNAL, "x"))

    site.app.include_router(router)
    return site


def test_refresh_has_main_only_and_is_empty_if_unchanged(site: Site) -> None:
    whole, live = site.get("/"), site.get("/", x_live="1")
    assert live.text.lstrip().startswith("<main")
    assert live.text.rstrip().endswith("</main>")
    assert live.text.strip() in whole.text
    again = site.get("/", x_live="1", if_none_match=live.headers["etag"])
    assert (again.status_code, again.text) == (204, "")
    site.world.do(site.world.submit(gpus={"fraction": 0.5}))
    changed = site.get("/", x_live="1", if_none_match=live.headers["etag"])
    assert changed.status_code == 200


def test_pages_are_not_cached_and_forbid_inline_code(site: Site) -> None:
    headers = site.get("/").headers
    assert headers["cache-control"] == "no-store"
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_frame_has_no_inline_code(site: Site) -> None:
    html = site.get("/").text
    assert " style=" not in html
    assert "<style" not in html
    assert " onclick=" not in html
    assert html.count("<script") == html.count('<script type="module" src="/static/')


def test_form_result_is_shown_once_on_next_page(trial: Site) -> None:
    answer = trial.post("/trial", what="<i>that</i>", whom=["ann", "bob"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/?view=table")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    shown = trial.get("/", cookie=cookie)
    assert "Did &lt;i&gt;that&lt;/i&gt; to 2." in shown.text
    assert 'gpupool_notice=""' in shown.headers["set-cookie"]
    assert "Did" not in trial.get("/", cookie=cookie, x_live="1").text, "a live look does not use it up"


def test_failed_form_returns_with_code_message_and_hint(trial: Site) -> None:
    answer = trial.post("/trial", wrong="WRONG_STATE", page="/trial?a=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/trial?a=1")
    shown = trial.get("/", cookie=answer.headers["set-cookie"].partition(";")[0])
    assert "It <b>cannot</b> be. Try another. WRONG_STATE" in words(shown.text)
    assert "<b>cannot" not in shown.text


def test_refusal_has_its_http_status(trial: Site) -> None:
    answer = trial.post("/trial", wrong="FORBIDDEN")
    assert answer.status_code == 403
    assert "FORBIDDEN" in words(answer.text)


@pytest.mark.parametrize("token", ["", "0" * 32, "é"])
def test_form_without_own_token_does_nothing(trial: Site, token: str) -> None:
    answer = trial.post("/trial", token=token, what="harm")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_token_of_another_visitor_is_refused(trial: Site) -> None:
    assert trial.post("/trial", uid=0, token=trial.token(uid=65534), what="harm").status_code == 403


def test_form_size_is_limited(trial: Site) -> None:
    assert trial.post("/trial", what="x" * 300_000, page="").status_code == 413
    many = {f"field-{n}": "x" for n in range(600)}
    answer = trial.post("/trial", **many)
    assert "The form cannot be read" in words(
        trial.get("/", cookie=answer.headers["set-cookie"].partition(";")[0]).text
    )


def test_unexpected_error_shows_only_an_incident_number(trial: Site) -> None:
    answer = trial.get("/trial?broken=true")
    assert answer.status_code == 500
    assert "incident" in words(answer.text)
    assert "secret detail" not in answer.text


def test_titles_are_escaped(trial: Site) -> None:
    html = trial.get("/trial").text
    assert "<trial>" not in html
    assert "A &lt;trial&gt;" in html


@pytest.mark.parametrize(
    "cookie", ["gpupool_notice=%00", "gpupool_notice=e30=", "gpupool_notice=WzEsMl0=", "gpupool_theme=x<y"]
)
def test_invalid_cookie_is_ignored(site: Site, cookie: str) -> None:
    assert site.get("/", cookie=cookie).status_code == 200


def test_scripts_are_cached_under_content_hash(site: Site) -> None:
    url = environment().globals["asset"]("app.js")  # type: ignore[operator]
    answer = site.get(url)
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/javascript")
    old = site.get("/static/of-another-version/app.js")
    assert old.headers["cache-control"] == "no-cache"
    for path in ("/static/x/nothing.js", "/static/x/../pages.py", "/static/x/%2e%2e/pages.py"):
        assert site.get(path).status_code == 404


def test_shared_content_is_computed_once_a_second() -> None:
    now = [0.0]
    kept: ResponseCache[int] = ResponseCache(lambda: now[0])
    made: list[int] = []

    def make(value: int) -> Callable[[], Coroutine[Any, Any, int]]:
        async def work() -> int:
            await asyncio.sleep(0)
            made.append(value)
            if value < 0:
                raise ArithmeticError
            return value

        return work

    async def main() -> None:
        assert await kept.get("a", make(1)) == 1
        assert await kept.get("a", make(2)) == 1
        assert await kept.get("b", make(3)) == 3
        now[0] = MAX_AGE_S
        assert await kept.get("a", make(4)) == 4
        for key in range(100):
            await kept.get(key, make(key))
        assert len(kept._values) <= 32
        assert await asyncio.gather(*(kept.get("c", make(value)) for value in (7, 8, 9))) == [7, 7, 7]
        first = asyncio.create_task(kept.get("d", make(10)))
        second = asyncio.create_task(kept.get("d", make(11)))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 10, "who hangs up takes it from nobody"
        with pytest.raises(ArithmeticError):
            await kept.get("e", make(-1))
        assert await kept.get("e", make(12)) == 12, "an error is not kept"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (gpus(1000), "1"),
        (gpus(25), "0.025"),
        (gpus(1750), "1.75"),
        (gpus(0), "0"),
        (percent(7.25), "7.2 %"),
        (percent(42.4), "42 %"),
        (size(1536), "1.5 KiB"),
        (size(3 * 1024**4), "3.0 TiB"),
        (number(1234567), "1 234 567"),
        (number(0.5), "0.50"),
        (tone("RUNNING"), "good"),
        (tone("unheard-of"), "off"),
        (shape("failed"), "✕"),
        (with_code("See `gpupool why <job>`."), "See <code>gpupool why &lt;job&gt;</code>."),
        (with_code("one ` alone"), "one ` alone"),
    ],
)
def test_values_are_formatted(shown: str, expected: str) -> None:
    assert shown.replace("\u2009", " ") == expected
