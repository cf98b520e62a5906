"""What carries a warning out of the pool; implemented in ``gpupool.messaging``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpupool.domain.warning import WarningSettings


@dataclass(frozen=True, slots=True)
class Letter:
    """One e-mail."""

    to: str
    subject: str
    text: str


class UndeliveredError(Exception):
    """It did not get there; ``again`` says whether another try may help."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.message = message
        self.again = again


class Courier(Protocol):
    """Sends; both methods take a bounded time and raise ``UndeliveredError``."""

    async def mail(self, settings: WarningSettings, letter: Letter) -> None:
        """Hand a letter to the mail server."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post JSON to a webhook."""
