"""The Protocol of the delivery of warnings by mail and webhook; implemented in ``gpupool.messaging``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpupool.domain.people.warning import WarningSettings


@dataclass(frozen=True, slots=True)
class Letter:
    """An e-mail."""

    to: str
    subject: str
    text: str


class UndeliveredError(Exception):
    """Raised when a message was not delivered; ``again`` is True if a retry may help."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.message = message
        self.again = again


class Courier(Protocol):
    """Delivery of messages. Both methods take a limited time and raise ``UndeliveredError``."""

    async def mail(self, settings: WarningSettings, letter: Letter) -> None:
        """Send an e-mail to the mail server."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post JSON to a webhook."""
