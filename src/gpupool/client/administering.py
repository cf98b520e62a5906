"""What the client has for administrators: machines, reservations, projects, people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from gpupool.api.schemas import (
    DepartmentList,
    DepartmentView,
    FairShareView,
    NewTokenView,
    NodeLost,
    NodeView,
    ProjectList,
    ProjectView,
    TokenList,
    TokenView,
    UserList,
    UserView,
)
from gpupool.api.schemas.bookings import BookingList, BookingView, NewBookingView
from gpupool.api.schemas.policy import PolicyView
from gpupool.api.schemas.warnings import WarningSettingsView
from gpupool.client.connection import Call, Connection

M = TypeVar("M", bound=BaseModel)


class Administration:
    """The part of a client that changes the pool itself. Every method raises ``GpupoolError``."""

    _connection: Connection

    # Machines

    def cordon(self, name: str, reason: str = "", *, drain: bool = False) -> NodeView:
        """Let a machine take nothing new; ``drain`` sends its training back to the queue as well."""
        body = {"reason": reason} | ({"drain": True} if drain else {})
        call = Call("POST", f"/v1/nodes/{in_path(name)}/cordon", json=body, again=True)
        return self._connection.ask(call, NodeView)

    def uncordon(self, name: str) -> NodeView:
        """Let a machine take work again."""
        return self._connection.ask(Call("POST", f"/v1/nodes/{in_path(name)}/uncordon", again=True), NodeView)

    def declare_lost(self, name: str, reason: str = "") -> int:
        """Give up all work of a machine that is known to be off; how many replicas that were."""
        call = Call("POST", f"/v1/nodes/{in_path(name)}/lost", json={"reason": reason}, again=True)
        return self._connection.ask(call, NodeLost).replicas

    def remove_node(self, name: str) -> None:
        """Forget a machine that does not answer and holds nothing."""
        self._connection.send(Call("DELETE", f"/v1/nodes/{in_path(name)}"))

    def set_sharing(self, name: str, mode: str | None, gpu: int | None = None) -> NodeView:
        """Choose how parts of a machine's GPUs are shared, or of one of them; None: as the machine has it."""
        body = {"mode": mode, "gpu": gpu}
        return self._connection.ask(Call("POST", f"/v1/nodes/{in_path(name)}/sharing", json=body, again=True), NodeView)

    def set_labels(self, name: str, put: Mapping[str, str] | None = None, remove: Sequence[str] = ()) -> NodeView:
        """Put labels on a machine, over those that it reports, or take such away."""
        body = {"put": dict(put or {}), "remove": list(remove)}
        return self._connection.ask(Call("POST", f"/v1/nodes/{in_path(name)}/labels", json=body, again=True), NodeView)

    def bookings(self) -> Sequence[BookingView]:
        """Reservations of nodes that hold or are to come."""
        return self._get("/v1/bookings", BookingList).bookings

    def reserve(self, name: str, starts_at: float, ends_at: float, **wanted: Any) -> NewBookingView:
        """Keep nodes for somebody; ``wanted``: ``nodes`` or ``gpus``, ``projects``, ... as in the API."""
        body = {"name": name, "starts_at": starts_at, "ends_at": ends_at, **wanted}
        return self._connection.ask(Call("POST", "/v1/bookings", json=body), NewBookingView)

    def cancel_reservation(self, booking_id: str) -> None:
        """Take a reservation back."""
        self._connection.send(Call("DELETE", f"/v1/bookings/{in_path(booking_id)}"))

    # People

    def policy(self) -> PolicyView:
        """The scheduling policy in force."""
        return self._get("/v1/policy", PolicyView)

    def change_policy(self, **changes: Any) -> PolicyView:
        """Change the policy (fields of ``PolicyView``); what is not named stays. For administrators."""
        return self._connection.ask(Call("PATCH", "/v1/policy", json=changes, again=True), PolicyView)

    def warnings(self) -> WarningSettingsView:
        """Where warnings to users go; secrets are not shown. For administrators."""
        return self._get("/v1/warnings", WarningSettingsView)

    def change_warnings(self, **changes: Any) -> WarningSettingsView:
        """Change it (fields of ``WarningSettingsView``); what is not named stays. For administrators."""
        return self._connection.ask(Call("PATCH", "/v1/warnings", json=changes, again=True), WarningSettingsView)

    def projects(self) -> Sequence[ProjectView]:
        """All projects with what they hold and wait for."""
        return self._get("/v1/projects", ProjectList).projects

    def create_project(self, name: str, **bounds: Any) -> ProjectView:
        """Make a project; ``bounds`` are the fields of ``ProjectView``."""
        return self._connection.ask(Call("POST", "/v1/projects", json={"name": name, **bounds}), ProjectView)

    def change_project(self, name: str, **changes: Any) -> ProjectView:
        """Change a project; what is not named stays."""
        call = Call("PATCH", f"/v1/projects/{in_path(name)}", json=changes, again=True)
        return self._connection.ask(call, ProjectView)

    def departments(self) -> Sequence[DepartmentView]:
        """All departments with their projects."""
        return self._get("/v1/departments", DepartmentList).departments

    def create_department(self, name: str, **bounds: Any) -> DepartmentView:
        """Make a department; ``bounds`` are ``quota_permille``, ``weight``, ``limit_permille`` and ``note``."""
        return self._connection.ask(Call("POST", "/v1/departments", json={"name": name, **bounds}), DepartmentView)

    def change_department(self, name: str, **changes: Any) -> DepartmentView:
        """Change a department; what is not named stays."""
        call = Call("PATCH", f"/v1/departments/{in_path(name)}", json=changes, again=True)
        return self._connection.ask(call, DepartmentView)

    def delete_department(self, name: str) -> None:
        """Remove a department without projects."""
        self._connection.send(Call("DELETE", f"/v1/departments/{in_path(name)}"))

    def fair_share(self) -> FairShareView:
        """What each department and project is due, holds, waits for and used lately, in order of turns."""
        return self._get("/v1/fairshare", FairShareView)

    def delete_project(self, name: str) -> None:
        """Remove a project without live work."""
        self._connection.send(Call("DELETE", f"/v1/projects/{in_path(name)}"))

    def users(self) -> Sequence[UserView]:
        """All users for an administrator, oneself for others."""
        return self._get("/v1/users", UserList).users

    def put_user(self, name: str, **changes: Any) -> UserView:
        """Make or change a user (``role``, ``uid``, ``gpu_limit_permille``, ``disabled``, ``email``)."""
        return self._connection.ask(Call("PUT", f"/v1/users/{in_path(name)}", json=changes, again=True), UserView)

    def tokens(self) -> Sequence[TokenView]:
        """All tokens for an administrator, one's own for others."""
        return self._get("/v1/tokens", TokenList).tokens

    def create_token(self, **wanted: Any) -> NewTokenView:
        """Make a token (``user``, ``role``, ``expires_in_s``, ``note``); its ``secret`` is never shown again."""
        return self._connection.ask(Call("POST", "/v1/tokens", json=wanted), NewTokenView)

    def revoke_token(self, token_id: str) -> None:
        """Make a token useless at once."""
        self._connection.send(Call("DELETE", f"/v1/tokens/{in_path(token_id)}", again=True))

    # Inside

    def _get(self, path: str, model: type[M], **query: Any) -> M:
        return self._connection.ask(Call("GET", path, params=given(query), again=True), model)


def given(query: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was not given."""
    return {key: value for key, value in query.items() if value is not None}


def in_path(name: str) -> str:
    """A name as a part of a path; an empty one must not lead elsewhere."""
    return quote(name, safe="") or "-"
