"""Two accounts of this machine, for tests as root."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

ANN, BOB = 54321, 54322


def as_user(uid: int, act: Callable[[], Any]) -> Any:
    """Return the result of ``act`` in a process of another account (JSON values); errors are returned as text.

    The account may be unable to execute the tests' Python, which is the superuser's; hence a fork without exec.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                result: Any = act()
            except Exception as error:  # noqa: BLE001 - the answer is its kind
                result = f"{type(error).__name__}: {error}"
            os.write(write, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)
