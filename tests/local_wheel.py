"""A small package as a wheel, for tests that install packages without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

WHEEL = "tinypkg-1.0-py3-none-any.whl"


def write_wheel(folder: Path) -> str:
    """Write a package of one module; return its SHA-256."""
    about = "tinypkg-1.0.dist-info"
    files = {
        "tinypkg.py": b"VALUE = 42\n",
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for name, data in files.items()
    }
    rows = [f"{name},sha256={digest[name].decode()},{len(data)}\n" for name, data in files.items()]
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
        wheel.writestr(f"{about}/RECORD", "".join(rows) + f"{about}/RECORD,,\n")
    return hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()
