"""Environments made of lock files, by the work's user, once for each content."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from remote_world import STUDENT, Laptop

WHEEL = "tinypkg-1.0-py3-none-any.whl"
root = pytest.mark.skipif(os.geteuid() != 0, reason="several users need root")


def write_wheel(folder: Path) -> str:
    """A package of one module; its SHA-256."""
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


SHOW = "import os, sys, tinypkg; print(tinypkg.VALUE, os.getuid(), os.stat(sys.prefix).st_uid, sys.prefix)"


@root
def test_lock_file_creates_private_environment(ada: Laptop, grace: Laptop) -> None:
    seen = []
    for who in (ada, ada, grace):
        digest = write_wheel(who.work) if not (who.work / WHEEL).exists() else None
        if digest:
            who.write("requirements.txt", f"./{WHEEL} --hash=sha256:{digest}\n".encode())
        said = who.text("run", "-q", "-p", "0.05", "--lock", "requirements.txt", "--", "python3", "-c", SHOW)
        seen.append(said.split())
    assert [row[:3] for row in seen] == [["42", str(uid), str(uid)] for uid in (STUDENT, STUDENT, STUDENT + 1)]
    assert seen[0][3] == seen[1][3] != seen[2][3]


def test_package_with_wrong_hash_is_not_installed(laptop: Laptop) -> None:
    write_wheel(laptop.work)
    laptop.write("requirements.txt", f"./{WHEEL} --hash=sha256:{'0' * 64}\n".encode())
    said = laptop("run", "-q", "-p", "0.05", "--lock", "requirements.txt", "--", "true", ok=False)
    assert said.returncode == 127
    assert b"environment of requirements.txt could not be created" in said.stderr
    assert b"0" * 64 in said.stderr  # what the tool says: expected that, found another


def test_missing_lock_file_is_reported_at_once(laptop: Laptop) -> None:
    laptop.write("x")
    said = laptop("run", "-q", "-p", "0.05", "--lock", "uv.lock", "--", "true", ok=False)
    assert (said.returncode, b"no file 'uv.lock'" in said.stderr) == (125, True)
