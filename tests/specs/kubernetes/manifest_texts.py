"""Manifests to begin with, and short ways to read them."""

from __future__ import annotations

from typing import Any

from gpupool.specs.kubernetes.manifests import Manifests, read_manifests
from gpupool.specs.kubernetes.settings import PodSettings

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: a
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: img:1
    command: [run]
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: a
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: img:1
        command: [run]
"""


def read(text: str, **settings: Any) -> Manifests:
    return read_manifests(text, "a.yaml", PodSettings(**settings))


def body(text: str, **settings: Any) -> dict[str, Any]:
    """Return the only request of a text, without the pool's own marks."""
    found = read(text, **settings).objects[0].request.to_body()
    found["labels"] = {k: v for k, v in found.get("labels", {}).items() if not k.startswith("gpupool/")}
    return {key: value for key, value in found.items() if value != {}}


def pod(*lines: str, notes: str = "", container: str = "") -> str:
    """Return a Pod with additional lines in its spec, annotations, and its container."""
    text = POD + "".join(f"    {line}\n" for line in container.splitlines()) + "".join(f"  {line}\n" for line in lines)
    return text.replace("  name: a\n", f"  name: a\n  annotations: {{{notes}}}\n") if notes else text


def gpus(limits: str = "{}", notes: str = "", *lines: str) -> dict[str, Any]:
    """Return the GPUs that a Pod with these limits and annotations requests."""
    return (
        read(pod(*lines, notes=notes, container=f"resources: {{limits: {limits}}}"))
        .objects[0]
        .request.gpus.model_dump(mode="json", exclude_defaults=True)
    )


def codes(text: str, **settings: Any) -> list[tuple[str, int, int]]:
    return [(str(r.code), r.line, r.column) for r in read(text, **settings).remarks]
