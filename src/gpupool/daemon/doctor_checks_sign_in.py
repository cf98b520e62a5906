"""Can people sign in to the dashboard: where it is served, and whether the provider answers."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Any

from gpupool.daemon.config import OFF, PoolConfig, read_config
from gpupool.daemon.doctor_checks import DoctorContext, Finding, NamedCheck, fine, problem, warning
from gpupool.daemon.oidc_file import read_provider
from gpupool.domain.errors import GpupoolError
from gpupool.domain.identity import ProviderSettings

_ANSWER_S = 5.0
_ANSWER_BYTES = 1 << 20
_LEAST = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")


def provider(context: DoctorContext) -> Iterator[Finding]:
    """Whether the file can be used, and the provider answers and calls itself by the name in it."""
    config = None if context.closed else _config(context)
    if config is None or config.oidc is None or config.oidc == OFF:
        return
    try:
        settings = read_provider(config.oidc)
    except GpupoolError as error:
        yield problem("sign-in", error.message, error.hint)
        return
    yield _asked(settings)


def _config(context: DoctorContext) -> PoolConfig | None:
    try:
        stored = read_config(str(context.state_dir))
        return PoolConfig.from_dict(stored) if stored else None
    except (GpupoolError, TypeError, ValueError):
        return None  # told by the check of the options


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
            "Tokens still let people in; see its address.",
        )
    if missing:
        return problem("sign-in", f"{url} says nothing of {missing[0]}.", "See that it is a provider's address.")
    if document["issuer"] != settings.issuer:
        return problem(
            "sign-in",
            f"The provider calls itself {str(document['issuer'])[:200]}, the file {settings.issuer}.",
            "Write the issuer exactly as the provider does, with or without a slash at the end.",
        )
    return fine("sign-in", f"{settings.title} answers; it has to know {settings.redirect_uri}.")


CHECKS: list[NamedCheck] = [("sign-in", provider)]
