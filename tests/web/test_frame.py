"""The frame of all pages, without a browser."""

from __future__ import annotations

from web_harness import Site, words

from gpupool.web.rendering import NAV


def test_first_page_has_navigation_frame(site: Site) -> None:
    answer = site.get("/")
    assert answer.status_code == 200
    assert "Skip to content" in words(answer.text)
    assert 'aria-current="page">Overview' in answer.text


def test_unknown_url_shows_an_error_page(site: Site) -> None:
    answer = site.get("/nothing")
    assert answer.status_code == 404
    assert "There is no page at this address." in words(answer.text)
    assert "NOT_FOUND" in answer.text
    assert site.get("/v1/nothing").json()["error"]["code"] == "NOT_FOUND"


def test_every_page_marks_emulated_gpus(site: Site) -> None:
    site.world.do(site.world.settle())
    for item in (item for _, items in NAV for item in items):
        assert "Emulated GPUs" in words(site.get(item.href).text), item.href


def test_unknown_workload_leads_to_the_list(site: Site) -> None:
    answer = site.get("/workloads/nope")
    assert answer.status_code == 404
    assert "It may have been deleted: see Workloads." in words(answer.text)
    assert "gpupool ps" not in answer.text
