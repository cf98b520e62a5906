"""Methods of the client for services: servers with replicas and a stable address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpupool.api.schemas.work.services import ServiceList, ServiceTokenView, ServiceView
from gpupool.client.administration import quote_segment, without_none
from gpupool.client.transport.connection import ApiCall, PoolConnection


class Services:
    """The methods of a client for services. Every method raises ``GpupoolError``.

    ``ref`` is a service's name, PROJECT/NAME or id.
    """

    _connection: PoolConnection

    def services(self) -> Sequence[ServiceView]:
        """Return the services of one's projects."""
        return self._connection.ask(ApiCall("GET", "/v1/services"), ServiceList).services

    def service(self, ref: str) -> ServiceView:
        """Return a service."""
        return self._connection.ask(ApiCall("GET", _path(ref)), ServiceView)

    def serve(
        self,
        name: str,
        command: Sequence[str],
        *,
        gpus: int | Mapping[str, Any] | None = None,
        service: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> ServiceView:
        """Create a service; ``{port}`` in the command is the port on which it must listen.

        ``gpus`` is a number of GPUs, or a mapping such as ``{"fraction": 0.5}``. ``service`` has the fields of that
        section of a job file, such as ``{"replicas": "0..4", "ready": {"http": "/health"}}``; ``fields`` are others,
        such as ``env`` and ``project``.
        """
        body = _definition(name, command, gpus, service, fields)
        return self._connection.ask(ApiCall("POST", "/v1/services", json=body), ServiceView)

    def update_service(self, ref: str, definition: Mapping[str, Any]) -> ServiceView:
        """Replace the definition (``ServiceView.definition``) of a service; another program is a new revision."""
        return self._connection.ask(ApiCall("POST", f"{_path(ref)}/update", json=dict(definition)), ServiceView)

    def scale_service(self, ref: str, replicas: int, maximum: int | None = None) -> ServiceView:
        """Set the number of replicas, or its limits; a stopped service starts again."""
        body = {"min": replicas, "max": replicas if maximum is None else maximum}
        return self._connection.ask(ApiCall("POST", f"{_path(ref)}/scale", json=body), ServiceView)

    def undo_service(self, ref: str, revision: int | None = None) -> ServiceView:
        """Change back to the revision before, or to ``revision``."""
        call = ApiCall("POST", f"{_path(ref)}/undo", json=without_none({"revision": revision}))
        return self._connection.ask(call, ServiceView)

    def stop_service(self, ref: str) -> ServiceView:
        """Stop all replicas; the definition stays."""
        return self._connection.ask(ApiCall("POST", f"{_path(ref)}/stop", json={}), ServiceView)

    def service_token(self, ref: str) -> str:
        """Create a token for requests to a service with the access ``token``; it is not stored."""
        return self._connection.ask(ApiCall("POST", f"{_path(ref)}/tokens", json={}), ServiceTokenView).secret

    def delete_service_tokens(self, ref: str) -> ServiceView:
        """Delete all tokens of a service."""
        return self._connection.ask(ApiCall("DELETE", f"{_path(ref)}/tokens"), ServiceView)

    def delete_service(self, ref: str) -> None:
        """Delete a stopped service."""
        self._connection.send(ApiCall("DELETE", _path(ref)))


def _definition(
    name: str,
    command: Sequence[str],
    gpus: int | Mapping[str, Any] | None,
    service: Mapping[str, Any] | None,
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    asked = {"count": gpus} if isinstance(gpus, int) else gpus
    body = {"name": name, "command": list(command), "gpus": asked, "service": service, **fields}
    return {**without_none(body), "kind": "service"}


def _path(ref: str) -> str:
    return f"/v1/services/{quote_segment(ref.replace('/', ':'))}"
