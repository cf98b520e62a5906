"""The checks of those with whom the pool talks: refused clients, the other heads, the provider of sign-in."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpupool.client.discovery import USER, Location
from gpupool.daemon.config import OFF, MachineRole, PoolConfig
from gpupool.daemon.doctor.check import DoctorContext, Finding, NamedCheck, fine, problem, warning
from gpupool.daemon.doctor.database import stored_config
from gpupool.daemon.local_api import ask
from gpupool.daemon.machine import CLUSTER_DIR, lead_path
from gpupool.daemon.oidc_file import read_provider
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import takeover_faults
from gpupool.domain.people.identity import ProviderSettings
from gpupool.fabric.ray.head_selection import HeadLead, read_heads, read_removal

_REMEDY = "See 'Limits' in docs/security.md, and 'gpupool policy set'."
_BUSY = frozenset({ErrorCode.OVERLOADED, ErrorCode.RATE_LIMITED})
_DOC = "See 'A second head' in docs/cluster.md."
_ANSWER_S = 5.0
_ANSWER_BYTES = 1 << 20
_LEAST = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")


def refused(context: DoctorContext) -> Iterator[Finding]:
    """Ask the running pool; nothing where none runs or it does not answer, which other checks report."""
    if context.closed or not context.pool_runs:
        return
    location = Location(str(context.state_dir), str(context.run_dir), USER)  # its kind does not matter here
    try:
        found = ask(location, "GET", "/v1/pool").get("refused", [])
    except GpupoolError as error:
        if error.code in _BUSY:
            yield warning("load", f"The pool refuses this request: {error.message}", _REMEDY)
        return
    except OSError:
        return
    for sentence in found:
        yield warning("load", f"{sentence}.", _REMEDY)
    if not found:
        yield fine("load", "No client was refused because of a limit in the last 10 minutes.")


def membership(context: DoctorContext) -> Iterator[Finding]:
    """Report that this machine was removed from its cluster."""
    removal = None if context.closed else read_removal(Path(context.state_dir) / CLUSTER_DIR)
    if removal is not None:
        yield problem("membership", removal.message, removal.hint)


def heads(context: DoctorContext) -> Iterator[Finding]:
    """Check readiness for a takeover; yield nothing if only one machine can lead."""
    config = None if context.closed else stored_config(context)
    folder = Path(context.state_dir) / CLUSTER_DIR
    if (
        config is None
        or config.role is not MachineRole.HEAD
        or config.database is None
        or read_removal(folder) is not None
    ):
        return
    lead = HeadLead.read(lead_path(config))
    if lead is not None and lead.leads:
        yield from _others(config)
    elif len(read_heads(folder)) > 1:
        yield _itself(config)


def _itself(config: PoolConfig) -> Finding:
    from gpupool.daemon.cluster.heads import node_name
    from gpupool.daemon.cluster.readiness import check

    found = check(config, node_name(config))
    if found:
        return problem("takeover", f"This head cannot take over. {' '.join(found)}", _DOC)
    return fine("takeover", "This head is a standby and can take over.")


def _others(config: PoolConfig) -> Iterator[Finding]:
    from gpupool.daemon.cluster.heads import node_name
    from gpupool.store.pool.head_reports import read_reports

    address = config.database_address()
    if address is None:
        return
    for name, report in read_reports(address).items():
        if name == node_name(config):
            continue
        if found := takeover_faults(report):
            yield problem("takeover", f"{name} cannot take over. {' '.join(found)}", "Run 'gpupool doctor' there.")
        else:
            yield fine("takeover", f"{name} is a standby and can take over.")


def provider(context: DoctorContext) -> Iterator[Finding]:
    """Check that the file is valid, and that the provider responds with the issuer in it."""
    config = None if context.closed else stored_config(context)
    if config is None or config.oidc is None or config.oidc == OFF:
        return
    try:
        settings = read_provider(config.oidc)
    except GpupoolError as error:
        yield problem("sign-in", error.message, error.hint)
        return
    yield _asked(settings)


def _asked(settings: ProviderSettings) -> Finding:
    url = f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        with urllib.request.urlopen(url, timeout=_ANSWER_S, context=context) as answer:  # noqa: S310 - https, or this machine
            document: Any = json.loads(answer.read(_ANSWER_BYTES))
        missing = [name for name in _LEAST if not isinstance(document.get(name), str)]
    except (OSError, ValueError, AttributeError) as error:
        return warning(
            "sign-in",
            f"The provider does not answer at {url}: {error}.",
            "Sign-in with tokens still works; check the address.",
        )
    if missing:
        return problem("sign-in", f"{url} does not contain {missing[0]}.", "Check the address of the provider.")
    if document["issuer"] != settings.issuer:
        return problem(
            "sign-in",
            f"The provider's issuer is {str(document['issuer'])[:200]}; the file has {settings.issuer}.",
            "Write the issuer exactly as the provider does, including a final slash.",
        )
    return fine("sign-in", f"{settings.title} responds; {settings.redirect_uri} must be registered there.")


CHECKS: list[NamedCheck] = [
    ("load", refused),
    ("membership", membership),
    ("takeover", heads),
    ("sign-in", provider),
]
