"""Answers of page routes: ``page`` renders a template, ``back_to`` sends the browser on after a form.

Every template has: ``visitor`` (Actor), ``title``, ``path``, ``nav``, ``may(role)``, ``asset(name)``, ``form_token()``,
``live`` (only ``<main>`` is wanted), ``notice``, ``parts`` (the macros of parts.html) and the filters ``duration``,
``gpus``, ``memory``, ``size``, ``percent``, ``number``, ``iso``, ``word``, ``tone`` and ``shape``.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gpupool.domain.access import Actor, Role
from gpupool.domain.units import format_duration
from gpupool.web import filters, notices
from gpupool.web.assets import assets
from gpupool.web.deps import form_token
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.listing import Listing, iso
from gpupool.web.notices import Notice
from gpupool.web.rows import rows

THEME_COOKIE = "gpupool_theme"
LIVE_HEADER = "x-live"

# The macros of parts.html are made once and know no page, but their forms carry the token of its visitor.
_token: ContextVar[str] = ContextVar("form_token", default="")


@dataclass(frozen=True, slots=True)
class NavItem:
    """A page in the navigation; ``key`` goes there after ``g``."""

    key: str
    href: str
    label: str
    role: Role = Role.VIEWER


NAV: tuple[tuple[str, tuple[NavItem, ...]], ...] = (
    (
        "Work",
        (
            NavItem("o", "/", "Overview"),
            NavItem("q", "/queue", "Queue"),
            NavItem("w", "/workloads", "Workloads"),
            NavItem("l", "/leases", "Leases"),
            NavItem("c", "/submit", "Submit", Role.MEMBER),
        ),
    ),
    (
        "Pool",
        (
            NavItem("n", "/nodes", "Nodes"),
            NavItem("p", "/projects", "Projects"),
            NavItem("b", "/bookings", "Bookings"),
            NavItem("a", "/analytics", "Analytics"),
            NavItem("r", "/reports", "Reports"),
        ),
    ),
    (
        "Access",
        (
            NavItem("u", "/users", "Users"),
            NavItem("t", "/tokens", "Tokens"),
            NavItem("s", "/settings", "Settings", Role.ADMIN),
            NavItem("e", "/audit", "Audit"),
        ),
    ),
)


def page(
    request: Request, visitor: Actor | None, template: str, *, title: str, status: int = 200, **values: Any
) -> Response:
    """A template as an answer; a ``Listing`` among ``values`` answers a request for its CSV.

    ``visitor`` None is for pages before sign-in: they have no navigation. A browser that asks to be kept up to date
    gets ``<main>`` only, and 204 while it is the same as it has.
    """
    for value in values.values():
        if isinstance(value, Listing) and value.download is not None:
            return value.download
    live = is_live(request)
    notice = None if live else notices.take(request)
    text = _render(request, visitor, template, {"title": title, "notice": notice, "live": live, **values})
    if live:
        return _live_answer(request, text)
    response = Response(text, status, headers=PAGE_HEADERS, media_type="text/html; charset=utf-8")
    if notice is not None:
        notices.drop(response)
    return response


def is_live(request: Request) -> bool:
    """Whether an open page asks to be brought up to date."""
    return request.headers.get(LIVE_HEADER) == "1"


def _live_answer(request: Request, text: str) -> Response:
    body = text.encode()
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = PAGE_HEADERS | {"etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=204, headers=headers)
    return Response(body, headers=headers, media_type="text/html; charset=utf-8")


def back_to(url: str, said: str = "") -> Response:
    """Go to another page of ours (303) and say there what was done."""
    response = RedirectResponse(quote(url, safe="/?&=#%+:,@~!$'()*;-._"), 303, PAGE_HEADERS)
    if said:
        notices.put(response, Notice(said))
    return response


def _render(request: Request, visitor: Actor | None, template: str, values: dict[str, Any]) -> str:
    def may(role: str) -> bool:
        return visitor is not None and visitor.role.includes(Role(role))

    services = request.app.state.services
    _token.set("" if visitor is None else form_token(visitor))
    return (
        environment()
        .get_template(template)
        .render(
            request=request,
            path=request.url.path,
            visitor=visitor,
            theme=_theme(request),
            nav=() if visitor is None else _nav(visitor.role),
            may=may,
            seen=services.history.count if visitor is not None else 0,
            emulated=visitor is not None and services.nodes.emulated,
            **values,
        )
    )


@cache
def _nav(role: Role) -> tuple[tuple[str, tuple[NavItem, ...]], ...]:
    return tuple((group, tuple(item for item in items if role.includes(item.role))) for group, items in NAV)


def _theme(request: Request) -> str:
    theme = request.cookies.get(THEME_COOKIE, "")
    return theme if theme in {"light", "dark"} else "auto"


@cache
def environment() -> jinja2.Environment:
    """The templates, with everything escaped and unknown names refused."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("gpupool.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters |= {
        "duration": format_duration,
        "gpus": filters.gpus,
        "memory": filters.memory,
        "size": filters.size,
        "percent": filters.percent,
        "number": filters.number,
        "iso": iso,
        "word": filters.word,
        "tone": filters.tone,
        "shape": filters.shape,
    }
    env.globals |= {"asset": assets().url, "form_token": _token.get, "rows": rows}
    env.globals["parts"] = env.get_template("parts.html").module
    return env
