"""Methods of the client for administrators: nodes, reservations, projects, users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from gpupool.api.schemas.fairness import DepartmentList, DepartmentView, FairShareView
from gpupool.api.schemas.nodes.nodes import NodeLost, NodeView
from gpupool.api.schemas.nodes.reservations import NewReservationView, ReservationList, ReservationView
from gpupool.api.schemas.people import NewTokenView, ProjectList, ProjectView, TokenList, TokenView, UserList, UserView
from gpupool.api.schemas.settings import BackupsView, PolicyView, StorageView, WarningSettingsView
from gpupool.client.transport.connection import ApiCall, PoolConnection

M = TypeVar("M", bound=BaseModel)


class Administration:
    """The methods of a client that change the pool itself. Every method raises ``GpupoolError``."""

    _connection: PoolConnection

    # Nodes

    def cordon(self, name: str, reason: str = "", *, drain: bool = False, gpu: int | None = None) -> NodeView:
        """Cordon a node, or only the GPU with an index; ``drain`` also queues the node's training again."""
        body = {"reason": reason} | ({"drain": True} if drain else {}) | ({} if gpu is None else {"gpu": gpu})
        call = ApiCall("POST", f"/v1/nodes/{quote_segment(name)}/cordon", json=body, repeatable=True)
        return self._connection.ask(call, NodeView)

    def uncordon(self, name: str, *, gpu: int | None = None) -> NodeView:
        """Uncordon a node, or only the GPU with an index."""
        path = f"/v1/nodes/{quote_segment(name)}/uncordon"
        return self._connection.ask(ApiCall("POST", path, json={"gpu": gpu}, repeatable=True), NodeView)

    def declare_lost(self, name: str, reason: str = "") -> int:
        """Declare a node lost that is known to be off, and return the number of its replicas."""
        call = ApiCall("POST", f"/v1/nodes/{quote_segment(name)}/lost", json={"reason": reason}, repeatable=True)
        return self._connection.ask(call, NodeLost).replicas

    def remove_node(self, name: str) -> None:
        """Remove a node that does not answer and runs nothing."""
        self._connection.send(ApiCall("DELETE", f"/v1/nodes/{quote_segment(name)}"))

    def set_sharing(self, name: str, mode: str | None, gpu: int | None = None) -> NodeView:
        """Set the sharing mode of a node's GPUs, or of one of them; None: the node's default."""
        body = {"mode": mode, "gpu": gpu}
        return self._connection.ask(
            ApiCall("POST", f"/v1/nodes/{quote_segment(name)}/sharing", json=body, repeatable=True), NodeView
        )

    def set_labels(self, name: str, put: Mapping[str, str] | None = None, remove: Sequence[str] = ()) -> NodeView:
        """Set labels of a node, which override those that it reports, or remove set labels."""
        body = {"put": dict(put or {}), "remove": list(remove)}
        return self._connection.ask(
            ApiCall("POST", f"/v1/nodes/{quote_segment(name)}/labels", json=body, repeatable=True), NodeView
        )

    def reservations(self) -> Sequence[ReservationView]:
        """Return the active and planned reservations of nodes."""
        return self._get("/v1/bookings", ReservationList).bookings

    bookings = reservations  # its earlier name

    def reserve(self, name: str, starts_at: float, ends_at: float, **wanted: Any) -> NewReservationView:
        """Reserve nodes; ``wanted``: ``nodes`` or ``gpus``, ``projects``, ... as in the API."""
        body = {"name": name, "starts_at": starts_at, "ends_at": ends_at, **wanted}
        return self._connection.ask(ApiCall("POST", "/v1/bookings", json=body), NewReservationView)

    def cancel_reservation(self, reservation_id: str) -> None:
        """Cancel a reservation."""
        self._connection.send(ApiCall("DELETE", f"/v1/bookings/{quote_segment(reservation_id)}"))

    # Policy, projects and users

    def policy(self) -> PolicyView:
        """Return the current scheduling policy."""
        return self._get("/v1/policy", PolicyView)

    def change_policy(self, **changes: Any) -> PolicyView:
        """Change the policy (fields of ``PolicyView``); other settings stay. For administrators."""
        return self._connection.ask(ApiCall("PATCH", "/v1/policy", json=changes, repeatable=True), PolicyView)

    def backups(self) -> BackupsView:
        """Return the schedule of backups and the copies. For administrators."""
        return self._get("/v1/backups", BackupsView)

    def change_backups(self, **changes: Any) -> BackupsView:
        """Change the schedule: ``every_s`` (None: off), ``keep``, ``folder``. For administrators."""
        return self._connection.ask(ApiCall("PATCH", "/v1/backups", json=changes, repeatable=True), BackupsView)

    def storage(self) -> StorageView:
        """Return the disk use on the machine of the control plane, at most a minute old. For administrators."""
        return self._get("/v1/storage", StorageView)

    def warnings(self) -> WarningSettingsView:
        """Return the settings of warnings to users, without secrets. For administrators."""
        return self._get("/v1/warnings", WarningSettingsView)

    def change_warnings(self, **changes: Any) -> WarningSettingsView:
        """Change settings (fields of ``WarningSettingsView``); others stay. For administrators."""
        return self._connection.ask(
            ApiCall("PATCH", "/v1/warnings", json=changes, repeatable=True), WarningSettingsView
        )

    def projects(self) -> Sequence[ProjectView]:
        """Return all projects with their allocated GPUs and queued replicas."""
        return self._get("/v1/projects", ProjectList).projects

    def create_project(self, name: str, **bounds: Any) -> ProjectView:
        """Create a project; ``bounds`` are the fields of ``ProjectView``."""
        return self._connection.ask(ApiCall("POST", "/v1/projects", json={"name": name, **bounds}), ProjectView)

    def change_project(self, name: str, **changes: Any) -> ProjectView:
        """Change a project; other settings stay."""
        call = ApiCall("PATCH", f"/v1/projects/{quote_segment(name)}", json=changes, repeatable=True)
        return self._connection.ask(call, ProjectView)

    def departments(self) -> Sequence[DepartmentView]:
        """Return all departments with their projects."""
        return self._get("/v1/departments", DepartmentList).departments

    def create_department(self, name: str, **bounds: Any) -> DepartmentView:
        """Create a department; ``bounds``: ``quota_permille``, ``weight``, ``limit_permille`` and ``note``."""
        return self._connection.ask(ApiCall("POST", "/v1/departments", json={"name": name, **bounds}), DepartmentView)

    def change_department(self, name: str, **changes: Any) -> DepartmentView:
        """Change a department; other settings stay."""
        call = ApiCall("PATCH", f"/v1/departments/{quote_segment(name)}", json=changes, repeatable=True)
        return self._connection.ask(call, DepartmentView)

    def delete_department(self, name: str) -> None:
        """Delete a department without projects."""
        self._connection.send(ApiCall("DELETE", f"/v1/departments/{quote_segment(name)}"))

    def fair_share(self) -> FairShareView:
        """Return fair share, allocation, demand and past use of departments and projects, in scheduling order."""
        return self._get("/v1/fairshare", FairShareView)

    def delete_project(self, name: str) -> None:
        """Delete a project without live workloads."""
        self._connection.send(ApiCall("DELETE", f"/v1/projects/{quote_segment(name)}"))

    def users(self) -> Sequence[UserView]:
        """Return all users for an administrator, else the caller."""
        return self._get("/v1/users", UserList).users

    def put_user(self, name: str, **changes: Any) -> UserView:
        """Create or change a user (``role``, ``uid``, ``gpu_limit_permille``, ``disabled``, ``email``)."""
        return self._connection.ask(
            ApiCall("PUT", f"/v1/users/{quote_segment(name)}", json=changes, repeatable=True), UserView
        )

    def tokens(self) -> Sequence[TokenView]:
        """Return all tokens for an administrator, else the caller's own."""
        return self._get("/v1/tokens", TokenList).tokens

    def create_token(self, **wanted: Any) -> NewTokenView:
        """Create a token (``user``, ``role``, ``scope``, ``expires_in_s``, ``note``). ``secret`` is shown only once."""
        return self._connection.ask(ApiCall("POST", "/v1/tokens", json=wanted), NewTokenView)

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        self._connection.send(ApiCall("DELETE", f"/v1/tokens/{quote_segment(token_id)}", repeatable=True))

    # Internal

    def _get(self, path: str, model: type[M], **query: Any) -> M:
        return self._connection.ask(ApiCall("GET", path, params=without_none(query), repeatable=True), model)


def without_none(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query without values of None."""
    return {key: value for key, value in query.items() if value is not None}


def quote_segment(name: str) -> str:
    """Quote a name as one segment of a path; an empty name becomes ``-``, which does not exist."""
    return quote(name, safe="") or "-"
