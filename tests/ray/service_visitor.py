"""Clients of a service: ``service_visitor.py URL STOP`` posts until the file STOP exists; prints counts of answers."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

CLIENTS = 3
QUESTION = json.dumps({"model": "x", "messages": [{"role": "user", "content": "a b c"}]})


def ask(url: str) -> str:
    parts = urlsplit(url)
    context = ssl._create_unverified_context()
    link = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=60, context=context)
    try:
        link.request("POST", parts.path, QUESTION)
        response = link.getresponse()
        text = response.read().decode()
        return str(response.status) if response.status == 200 else f"{response.status} {text}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        link.close()


def main(url: str, stop: Path) -> None:
    counts: dict[str, int] = {}

    def repeat() -> None:
        while not stop.exists():
            answer = ask(url)
            counts[answer] = counts.get(answer, 0) + 1
            stop.with_suffix(".count").write_text(str(sum(counts.values())))

    threads = [threading.Thread(target=repeat) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.stdout.write(ask(sys.argv[1]))
    else:
        main(sys.argv[1], Path(sys.argv[2]))
