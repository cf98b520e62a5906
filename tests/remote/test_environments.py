"""Environments made of lock files, by the work's user, once for each content."""

from __future__ import annotations

import os

import pytest
from remote_world import STUDENT, Laptop

from local_wheel import WHEEL, write_wheel

root = pytest.mark.skipif(os.geteuid() != 0, reason="several users need root")


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
