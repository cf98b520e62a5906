"""The use of a service by token, since the start of this control plane. Pure.

The GPU time of a service is that of all its replicas, also while they are idle. Tokens share it in proportion to the
time of their requests at replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpupool.domain.protocol.gateway_table import TokenUse


@dataclass(frozen=True, slots=True)
class TokenShare:
    """The use with one token (or several of the same name), and its part of the GPU time."""

    token: str
    user: str
    use: TokenUse
    gpu_s: float


def shares_of(
    tokens: Mapping[str, TokenUse], gpu_s: float, holder: Callable[[str], tuple[str, str]]
) -> list[TokenShare]:
    """Return the use by token, the most GPU time first; ``holder`` returns the name and user of a digest."""
    named: dict[tuple[str, str], TokenUse] = {}
    for digest, use in tokens.items():
        key = holder(digest)
        named[key] = named.get(key, TokenUse()).plus(use)
    total_s = sum(use.busy_s for use in named.values())
    found = [
        TokenShare(token, user, use, gpu_s * use.busy_s / total_s if total_s else 0.0)
        for (token, user), use in named.items()
    ]
    return sorted(found, key=lambda each: (-each.gpu_s, -each.use.requests, each.token))
