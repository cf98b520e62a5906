"""Patterns of names in requests, and what to write when a name does not match."""

from __future__ import annotations

from typing import Final

NAME: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
NODE_NAME: Final = r"^[A-Za-z0-9._-]{1,253}$"
USER_NAME: Final = r"^[A-Za-z0-9._@+-]{1,64}$"
SERVICE_REF: Final = r"^[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?$"
ENVIRONMENT: Final = r"^(python(:?3(\.[0-9]{1,2})?)?|uv\.lock|requirements\.txt|conda\.yml)?$"

HINTS: Final = {
    NAME: "Use up to 63 letters, digits, '.', '_' and '-'; begin and end with a letter or digit.",
    NODE_NAME: "Use letters, digits, '.', '_' and '-'.",
    USER_NAME: "Use up to 64 letters, digits, '.', '_', '@', '+' and '-'.",
    SERVICE_REF: "Write the service's name, its id, or PROJECT:NAME.",
    ENVIRONMENT: "Write python, python:3.11, or a file: uv.lock, requirements.txt or environment.yml.",
}
