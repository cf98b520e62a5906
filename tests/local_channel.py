"""A channel of conda in a folder, with one package: a script that prints the environment in which it is."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

PROGRAM = "lab-greet"
PLACEHOLDER = "/opt/" + "placehold_" * 24  # replaced by the path of the environment
_SUBDIRS = ("noarch", "linux-64", "linux-aarch64")


def write_channel(folder: Path) -> str:
    """Create the channel in a folder; return its address."""
    script = f"#!/bin/sh\necho {PLACEHOLDER}\n".encode()
    file = {
        "_path": f"bin/{PROGRAM}",
        "path_type": "hardlink",
        "sha256": hashlib.sha256(script).hexdigest(),
        "size_in_bytes": len(script),
        "file_mode": "text",
        "prefix_placeholder": PLACEHOLDER,
    }
    about = {"name": PROGRAM, "version": "1.0", "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}
    about |= {"noarch": "generic", "timestamp": 1}
    members: dict[str, bytes] = {
        "info/index.json": json.dumps(about).encode(),
        "info/files": f"bin/{PROGRAM}\n".encode(),
        "info/paths.json": json.dumps({"paths": [file], "paths_version": 1}).encode(),
        f"bin/{PROGRAM}": script,
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:bz2") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755 if name.startswith("bin/") else 0o644
            archive.addfile(member, io.BytesIO(content))
    package, data = f"{PROGRAM}-1.0-0.tar.bz2", packed.getvalue()
    sums = {"md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    for subdir in _SUBDIRS:
        (folder / subdir).mkdir(parents=True)
        packages: dict[str, Any] = {package: about | sums} if subdir == "noarch" else {}
        index = {"info": {"subdir": subdir}, "packages": packages, "packages.conda": {}, "repodata_version": 1}
        (folder / subdir / "repodata.json").write_text(json.dumps(index))
    (folder / "noarch" / package).write_bytes(data)
    return f"file://{folder}"
