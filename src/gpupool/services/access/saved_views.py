"""Saved views: filters of pages with lists, which users keep under a name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor
from gpupool.services.control.engine import Engine

PAGES = ("workloads", "queue", "leases", "nodes", "audit")
MAX_VIEWS = 20
MAX_NAME_LENGTH = 40
MAX_QUERY_LENGTH = 500


@dataclass(frozen=True, slots=True)
class SavedView:
    """A name, and the page and the query of its address."""

    name: str
    page: str
    query: str

    @property
    def address(self) -> str:
        """Return the address of the page with the filters."""
        return f"/{self.page}?{self.query}"


class SavedViews:
    """The views of each user, by name, in one document of the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._views: dict[str, dict[str, str]] | None = None

    async def of(self, actor: Actor, page: str) -> Sequence[SavedView]:
        """Return the user's views of a page, by name."""
        own = (await self._all()).get(actor.user, {})
        views = [_parse(name, own[name]) for name in sorted(own)]
        return [view for view in views if view.page == page]

    async def save(self, actor: Actor, page: str, name: str, query: str) -> SavedView:
        """Save or replace a view. Raises INVALID_NAME, INVALID_REQUEST, TOO_LARGE, INVALID_COUNT."""
        name = " ".join(name.split())
        if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise GpupoolError(
                ErrorCode.INVALID_NAME, "This is not a name for a view.", f"Give 1 to {MAX_NAME_LENGTH} characters."
            )
        if page not in PAGES:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "This page has no views.", f"Use {', '.join(PAGES)}.")
        view = SavedView(name, page, _clean(query))
        own = (await self._all()).get(actor.user, {})
        if name not in own and len(own) >= MAX_VIEWS:
            raise GpupoolError(ErrorCode.INVALID_COUNT, f"You have {MAX_VIEWS} views.", "Delete one first.")
        await self._write(actor, {**own, name: view.address}, f"view '{name}' saved")
        return view

    async def delete(self, actor: Actor, name: str) -> SavedView:
        """Delete a view and return it. Raises NOT_FOUND."""
        own = (await self._all()).get(actor.user, {})
        if name not in own:
            raise GpupoolError(ErrorCode.NOT_FOUND, f"You have no view '{name[:MAX_NAME_LENGTH]}'.", "Reload the page.")
        await self._write(actor, {key: value for key, value in own.items() if key != name}, f"view '{name}' deleted")
        return _parse(name, own[name])

    async def _all(self) -> dict[str, dict[str, str]]:
        if self._views is None:
            text = await self._engine.ports.store.documents.load("saved_views")
            self._views = json.loads(text) if text else {}
        return self._views

    async def _write(self, actor: Actor, own: dict[str, str], what: str) -> None:
        event = self._engine.change_event(actor.user, what, f"user {actor.user}")

        async def write() -> None:
            views = {**(await self._all()), actor.user: own}
            await self._engine.ports.store.documents.save("saved_views", json.dumps(views), event)
            self._views = views

        await self._engine.run_exclusive(write)


def _parse(name: str, stored: str) -> SavedView:
    """Return a view from its address; older pools stored only the query of the page of workloads."""
    if not stored.startswith("/"):
        return SavedView(name, "workloads", stored)
    page, _, query = stored[1:].partition("?")
    return SavedView(name, page, query)


def _clean(query: str) -> str:
    """Return the query without the page and without empty values."""
    if len(query) > MAX_QUERY_LENGTH:
        raise GpupoolError(ErrorCode.TOO_LARGE, "The filters are too long for a view.", "Use fewer words.")
    return urlencode([(key, value) for key, value in parse_qsl(query) if key not in {"page", "format", "table"}])
