"""Shared by all workers: report results, skip, and start at the same time."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LONGEST_WAIT_S = 400.0


def say(**found: Any) -> NoReturn:
    """End with what was measured, as the last line."""
    print(json.dumps(found), flush=True)
    sys.exit(0)


def need(module: str) -> ModuleType:
    """Import a module, or end this worker with the reason."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        say(skip=f"{module} is not installed ({error})")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Arguments of a worker; ``--meet`` and ``--name`` are the bench's."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("--meet", type=Path)
    made.add_argument("--name", default="0")
    made.add_argument("--seconds", type=float, default=2.0)
    return made


def begin(options: argparse.Namespace) -> float:
    """Wait until all workers are ready; the moment (of ``time.monotonic``) at which the window ends."""
    if options.meet is not None:
        (options.meet / f"ready.{options.name}").touch()
        deadline, go = time.monotonic() + LONGEST_WAIT_S, options.meet / "go"
        while not go.exists():
            if time.monotonic() > deadline:
                sys.exit("nobody said go")
            time.sleep(0.01)
        time.sleep(max(0.0, float(go.read_text()) - time.time()))
    return time.monotonic() + float(options.seconds)
