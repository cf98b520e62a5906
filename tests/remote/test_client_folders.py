"""Folders to and from a pool with the Python client, over TLS and over the socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_world import Head

from gpupool import Client
from gpupool.domain.errors import ErrorCode, GpupoolError


@pytest.fixture(params=["tls", "socket"])
def client(
    head: Head, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Client]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "socket":
        made = Client(head.pool.run / "api.sock")
    else:
        made = Client(url=f"https://{head.url}", token=head.token(), fingerprint=head.fingerprint)
    with made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a program, its data in a subfolder, and files that are not uploaded."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "in.txt").write_text("words")
    (folder / "secret.txt").write_text("mine")
    (folder / ".gpupoolignore").write_text("secret.txt\n")
    return folder


COPIES = ["sh", "-c", "ls; cat data/in.txt > out.txt; mkdir more; echo 2 > more/two.txt"]


def test_folder_is_sent_and_results_are_fetched(client: Client, project: Path, tmp_path: Path) -> None:
    job = client.run(COPIES, folder=project, fraction=0.05, timeout=60)
    assert job.output().split() == ["data"]
    here = tmp_path / "results"
    assert sorted(job.fetch("out.txt", "more", into=here).files) == ["more/two.txt", "out.txt"]
    assert (here / "out.txt").read_text() == "words"
    (here / "out.txt").write_text("others")
    assert list(client.fetch(job.name, "out.txt", into=here).left) == ["out.txt"]
    assert client.fetch(job.name, "out.txt", into=here, force=True).files == ["out.txt"]
    assert (here / "out.txt").read_text() == "words"


def test_sent_folder_is_copied_for_each_job(client: Client, project: Path) -> None:
    sent = client.send_folder(project)
    assert (sent.files, client.send_folder(str(project)).sent_bytes) == (2, 0)
    line = "cat in.txt; echo more >> in.txt"
    jobs = [client.submit(["sh", "-c", line], tree=sent.tree, workdir="data", fraction=0.05) for _ in range(2)]
    assert [(job.result(60), job.output()) for job in jobs] == [(0, "words")] * 2
    assert client.plan(["true"], folder=project, gitignore=True).starts_now


def test_unsendable_folder_is_reported(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(GpupoolError) as refused:
            client.submit(["true"], folder=wrong)
        assert refused.value.code is ErrorCode.INVALID_FILE
    with pytest.raises(GpupoolError) as refused:
        client.submit(["true"], tree="0" * 64)
    assert refused.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(GpupoolError) as refused:
        client.fetch("no-such-work", into=tmp_path)
    assert refused.value.code is ErrorCode.UNKNOWN_WORKLOAD
