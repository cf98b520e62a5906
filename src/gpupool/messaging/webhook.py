"""One POST to a webhook."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2

from gpupool.services.warnings.courier import UndeliveredError

TIMEOUT_S = 10.0
_AGAIN = {408, 425, 429}  # of the 4xx: those that pass


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Post; anything but a 2xx is a failure, a redirection too. Raises ``UndeliveredError``."""
    try:
        async with (
            httpx2.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            status = answer.status_code  # its body is not read: nothing in it matters here
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        why = type(error).__name__  # not its text: the address may be in it
        raise UndeliveredError(f"the webhook cannot be reached ({why})", again=True) from error
    if not 200 <= status < 300:
        raise UndeliveredError(f"the webhook answered {status}", again=status >= 500 or status in _AGAIN)
