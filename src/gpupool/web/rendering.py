"""Responses of page routes: ``page`` renders a template, ``back_to`` redirects after a form.

Every template has: ``visitor`` (Actor), ``title``, ``path``, ``nav``, ``may(role)``, ``asset(name)``, ``form_token()``,
``live`` (only ``<main>`` is wanted), ``notice``, ``parts`` (the macros of parts.html) and the filters ``duration``,
``gpus``, ``memory``, ``size``, ``percent``, ``number``, ``iso``, ``word``, ``tone``, ``shape`` and ``with_code``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gpupool.domain.people.access import Actor, Role
from gpupool.domain.units import format_duration
from gpupool.web.assets import assets
from gpupool.web.deps import form_token
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.kit import filters, notices
from gpupool.web.kit.listing import Cell, ColumnKind, Listing, TableRow, iso
from gpupool.web.kit.notices import Notice

THEME_COOKIE = "gpupool_theme"
LIVE_HEADER = "x-live"
MAX_UNCUT = 20  # characters of a text; longer ones may be cut, and have a title with all of it for the mouse

# The macros of parts.html are compiled once for all pages, but their forms need the token of the current visitor.
_token: ContextVar[str] = ContextVar("form_token", default="")
NOTHING = '<span class="quiet">–</span>'  # noqa: RUF001 - a dash is meant


def rows(listing: Listing[Any], actions: Callable[[Any], str] | None = None, *, dense: bool = False) -> Markup:
    """Return all rows of the current page; ``actions`` returns the HTML of a last cell with buttons.

    Rows of a ``dense`` table, whose texts may be cut, show all of them when they have the focus.
    """
    return Markup("".join(_row(line, actions, dense=dense) for line in listing.lines))  # noqa: S704 - cells are escaped


def _row(line: TableRow[Any], actions: Callable[[Any], str] | None, *, dense: bool) -> str:
    cells = "".join(map(_cell, line.cells))
    buttons = "" if actions is None else f'<td role="cell" class="row-actions">{actions(line.row)}</td>'
    stop = -1 if actions is not None or any(cell.href for cell in line.cells) else 0  # those with links have stops
    focus = f' tabindex="{stop}"' if dense else ""
    return f'<tr role="row"{focus}>{cells}{buttons}</tr>\n'


def _cell(cell: Cell) -> str:
    shown = NOTHING if cell.value is None else _SHOWN[cell.kind](cell.value)
    if cell.href:
        shown = f'<a href="{escape(cell.href)}">{shown}</a>'
    note = f'<span class="note">{escape(cell.note)}</span>' if cell.note else ""
    kind = ' class="number"' if cell.kind.numeric else ""
    full = f' title="{escape(cell.value)}"' if len(str(cell.value)) > MAX_UNCUT and cell.kind is ColumnKind.TEXT else ""
    return f'<td role="cell" data-label="{escape(cell.title)}"{kind}{full}>{shown}{note}</td>'


def when(epoch_s: float) -> str:
    """Return a time element; the page's script converts it to the viewer's time zone."""
    text = iso(epoch_s)
    return f'<time datetime="{text}" data-when="{round(epoch_s, 3)}">{text[:10]} {text[11:19]} UTC</time>'


def state(value: object) -> str:
    """Return a state as symbol, colour and word."""
    sign, word = filters.shape(value), escape(filters.word(value))
    return f'<span class="state state-{filters.tone(value)}"><span aria-hidden="true">{sign}</span> {word}</span>'


_SHOWN: dict[ColumnKind, Callable[[Any], str]] = {
    ColumnKind.TEXT: escape,
    ColumnKind.NUMBER: lambda value: escape(filters.number(value)),
    ColumnKind.TIME: when,
    ColumnKind.DURATION: lambda value: escape(format_duration(value, tenths=True)),
    ColumnKind.PERCENT: filters.percent,
    ColumnKind.GPUS: filters.gpus,
    ColumnKind.STATE: state,
    ColumnKind.BYTES: filters.size,
}


@dataclass(frozen=True, slots=True)
class NavItem:
    """A page in the navigation; the keys ``g`` and ``key`` open it."""

    key: str
    href: str
    label: str
    role: Role = Role.VIEWER


NAV: tuple[tuple[str, tuple[NavItem, ...]], ...] = (
    (
        "Work",
        (
            NavItem("h", "/home", "Home"),
            NavItem("o", "/", "Overview"),
            NavItem("q", "/queue", "Queue"),
            NavItem("w", "/workloads", "Workloads"),
            NavItem("k", "/workspaces", "Workspaces"),
            NavItem("v", "/services", "Services"),
            NavItem("l", "/leases", "Leases"),
            NavItem("c", "/submit", "Submit", Role.MEMBER),
        ),
    ),
    (
        "Pool",
        (
            NavItem("n", "/nodes", "Nodes"),
            NavItem("p", "/projects", "Projects"),
            NavItem("b", "/bookings", "Reservations"),
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
            NavItem("i", "/reference", "API"),
        ),
    ),
)


def page(
    request: Request, visitor: Actor | None, template: str, *, title: str, status: int = 200, **values: Any
) -> Response:
    """Render a template; a ``Listing`` among ``values`` answers a request for its CSV.

    ``visitor`` is None for pages before sign-in, which have no navigation. A live update gets only ``<main>``, and
    204 if it has not changed.
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
    """Return True for a live update of an open page."""
    return request.headers.get(LIVE_HEADER) == "1"


def _live_answer(request: Request, text: str) -> Response:
    body = text.encode()
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = PAGE_HEADERS | {"etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=204, headers=headers)
    return Response(body, headers=headers, media_type="text/html; charset=utf-8")


def back_to(url: str, notice: str = "") -> Response:
    """Redirect to another page (303), which shows ``notice``."""
    response = RedirectResponse(quote(url, safe="/?&=#%+:,@~!$'()*;-._"), 303, PAGE_HEADERS)
    if notice:
        notices.put(response, Notice(notice))
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
    """Return the template environment: autoescape is on, and unknown names are errors."""
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
        "with_code": filters.with_code,
    }
    env.globals |= {"asset": assets().url, "form_token": _token.get, "rows": rows}
    env.globals["parts"] = env.get_template("parts.html").module
    return env
