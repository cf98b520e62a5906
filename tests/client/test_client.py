"""The typed client against a whole pool."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from live_pool import LivePool

from gpupool import Client
from gpupool.client import Job, JobFailed, Lease
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol import frames
from gpupool.domain.work.workload import WorkloadState
from gpupool.specs.request import parse_request

SLEEP = ["sleep", "60"]


def test_job_is_submitted_awaited_and_its_log_read(client: Client) -> None:
    job = client.submit(["sh", "-c", "echo out; echo err >&2"], fraction=0.1, name="greeter", labels={"a": "b"})
    assert isinstance(job, Job)
    assert job.result(30) == 0
    assert job.done()
    assert job.output() == "out\nerr\n" or sorted(job.output().split()) == ["err", "out"]
    assert {chunk.stream for chunk in job.logs()} == {"out", "err"}
    assert b"".join(chunk.data for chunk in job.logs(follow=True) if chunk.stream == "out") == b"out\n"
    assert job.detail().labels == {"a": "b"}
    assert client.get("greeter").id == job.id


def test_program_starts_in_current_folder_with_caller_path(client: Client, tmp_path: Path, monkeypatch: Any) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    job = client.run("sh -c 'pwd; echo $MARK'", env={"MARK": "m"}, fraction=0.1, timeout=30)
    assert job.output().split() == [str(tmp_path), "m"]


def test_sharing_mode_is_requested_and_returned(client: Client) -> None:
    job = client.run(["true"], fraction=0.1, compute="cap", sharing="advisory", timeout=30)
    told = job.detail()
    assert (told.gpus.compute, told.gpus.sharing, told.sharing) == ("cap", "advisory", "advisory")
    assert [(lease.sharing, lease.compute) for lease in told.leases] == [("advisory", "cap")]
    assert "nothing enforces" in told.guarantees


def test_failure_is_raised_with_its_status(client: Client) -> None:
    with pytest.raises(JobFailed) as failed:
        client.run("sh -c 'exit 4'", restart="never", fraction=0.1, timeout=30)
    assert failed.value.exit_status == 4
    assert failed.value.view.state is WorkloadState.FAILED
    assert "exit status 4" in str(failed.value)


def test_prepared_request_is_accepted(client: Client) -> None:
    request = parse_request({"command": ["true"], "workdir": "/tmp", "gpus": {"fraction": 0.1}})
    assert client.run(request, timeout=30).view.state is WorkloadState.SUCCEEDED


def test_invalid_requests_are_not_sent() -> None:
    client = Client("/nowhere/api.sock")
    for wrong in ({"fraction": 2}, {"max_time": "soon"}, {"colour": "blue"}):
        with pytest.raises(GpupoolError) as refused:
            client.submit(["true"], **wrong)  # type: ignore[arg-type]
        assert refused.value.code is not ErrorCode.POOL_UNREACHABLE
    with pytest.raises(GpupoolError) as refused:
        client.submit("echo 'open")
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_wait_times_out_and_cancel_ends_it(client: Client) -> None:
    job = client.submit(SLEEP, fraction=0.1).wait_started(30)
    assert not job.done()
    with pytest.raises(TimeoutError):
        job.wait(0.05)
    with pytest.raises(TimeoutError):
        job.result(0.05)
    assert job.cancel(force=True) is True
    assert job.wait(30).view.state is WorkloadState.STOPPED
    assert job.cancel() is False
    with pytest.raises(JobFailed):
        job.result()
    job.delete()
    with pytest.raises(GpupoolError) as gone:
        client.get(job.id)
    assert gone.value.code is ErrorCode.UNKNOWN_WORKLOAD


def test_suspend_and_resume_work(client: Client) -> None:
    job = client.submit(SLEEP, fraction=0.1).wait_started(30)
    assert job.suspend().view.suspended
    assert not job.resume().view.suspended
    assert job.why().sentence


def test_restart_starts_the_next_attempt(client: Client) -> None:
    job = client.submit(SLEEP, fraction=0.1).wait_started(30)
    assert job.restart(force=True).view.state is WorkloadState.RUNNING
    while client.get(job.id).detail().replicas[0].attempt == 1:
        time.sleep(0.05)
    client.restart(job.id, attempt=1)
    assert client.get(job.id).detail().replicas[0].attempt == 2
    with pytest.raises(GpupoolError) as refused:
        client.restart(job.id, attempt=7)
    assert refused.value.code is ErrorCode.WRONG_STATE
    job.cancel(force=True)


def test_list_reads_all_pages(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr("gpupool.client.client._PAGE", 2)
    made = [client.submit(SLEEP, fraction=0.001, labels={"set": "listed"}) for _ in range(5)]
    found = client.list(labels={"set": "listed"})
    assert [job.id for job in found] == [job.id for job in reversed(made)]
    assert len(client.list(labels={"set": "listed"}, limit=3)) == 3
    assert client.list(labels={"set": "listed"}, states=["succeeded"]) == []
    made[0].cancel(force=True)
    made[0].wait(30)
    events = list(client.events(workload=made[0].id))
    assert events[0].reason == "SUBMITTED"
    assert len(events) > 2
    assert list(client.events(workload=made[0].id, newest=1)) == events[-1:]


def test_lease_runs_programs_and_is_released(client: Client) -> None:
    with client.request_gpus(1, fraction=0.2, lifetime="1h", timeout=30) as lease:
        assert isinstance(lease, Lease)
        [gpu] = client.gpus()
        assert [(h.workload, h.permille) for h in gpu.holders] == [(lease.id, 200)]
        assert lease.run(["true"], timeout=30).view.on == lease.id
        with pytest.raises(JobFailed):
            lease.run("sh -c 'exit 9'", timeout=30)
        both = [lease.submit(["true"]), lease.submit(["true"])]
        assert [job.result(30) for job in both] == [0, 0]
        before = lease.detail().expires_at
        assert before is not None
        assert lease.extend(60).view.expires_at == pytest.approx(before + 60)
    assert lease.wait(30).view.state.final
    assert client.gpus()[0].holders == []


def test_lease_not_granted_in_time_holds_nothing(client: Client) -> None:
    with client.request_gpus(1, timeout=30), pytest.raises(TimeoutError):
        client.request_gpus(1, timeout=0.1)
    assert [job for job in client.list() if job.view.state is WorkloadState.QUEUED] == []


def test_lease_is_released_when_its_block_fails(client: Client) -> None:
    with pytest.raises(KeyError), client.request_gpus(1, fraction=0.1, timeout=30) as lease:
        raise KeyError
    assert lease.wait(30).view.state.final


def test_pool_users_and_usage_are_returned(client: Client) -> None:
    assert client.pool().emulated
    assert client.whoami().role == "admin"
    assert [node.name for node in client.nodes()] == ["n1"]
    assert client.node("n1").gpus[0].model
    assert client.cordon("n1", "why").cordon_reason == "why"
    assert client.uncordon("n1").state == "up"
    assert client.set_sharing("n1", "advisory", gpu=0).gpus[0].sharing_policy == "advisory"
    assert client.set_sharing("n1", None, gpu=0).gpus[0].sharing_policy is None
    assert client.create_project("vision", quota_permille=500).quota_permille == 500
    assert client.change_project("vision", note="eyes").note == "eyes"
    assert {"default", "vision"} <= {project.name for project in client.projects()}
    client.delete_project("vision")
    assert client.put_user("ada", role="viewer").role == "viewer"
    assert "ada" in {user.name for user in client.users()}
    token = client.create_token(user="ada", note="n")
    assert token.secret.startswith("gpt_")
    client.revoke_token(token.id)
    assert next(t for t in client.tokens() if t.id == token.id).revoked_at is not None
    assert client.usage(0).since == 0


def test_events_are_followed(client: Client) -> None:
    after = max((e.id for e in client.events()), default=0)
    heard: list[str] = []

    def listen() -> None:
        for event in client.events(follow=True, after_id=after):
            heard.append(event.reason)
            if event.reason == "EXITED":
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    client.run(["true"], fraction=0.1, timeout=30)
    thread.join(30)
    assert heard[0] == "SUBMITTED"
    assert heard[-1] == "EXITED"


def test_attach_works_directly_and_through_the_relay(live: LivePool, client: Client) -> None:
    token = live.token()["secret"]
    with Client(url=live.url, token=token, ca_file=live.tls.certificate) as remote:
        for road in (client, remote):
            request = {"command": ["cat"], "stdin": True, "client_bound": True, "kind": "run", "workdir": "/tmp"}
            job = client.submit(parse_request({**request, "gpus": {"fraction": 0.1}})).wait_started(30)
            heard = b""
            with road.attach(job.id) as attachment:
                attachment.hello()
                attachment.send(frames.STDIN, b"hello")
                attachment.send(frames.STDIN_EOF)
                for kind, payload in attachment:
                    heard += payload if kind == frames.STDOUT else b""
            assert heard == b"hello"
            assert kind == frames.EXIT
            assert json.loads(payload)["status"] == 0
            with pytest.raises(GpupoolError) as refused, road.attach("nothing-like-it") as attachment:
                list(attachment)
            assert refused.value.code is ErrorCode.UNKNOWN_WORKLOAD


def test_job_has_a_notebook_view(client: Client) -> None:
    job = client.run(["echo", "<b>&"], fraction=0.1, timeout=30)
    shown = job._repr_html_()
    assert "&lt;b&gt;&amp;" in shown
    assert "<b>" not in shown
    assert job.name in repr(job)


# Over the network


def test_certificate_is_trusted_by_fingerprint_or_authority_only(live: LivePool) -> None:
    token = live.token()["secret"]
    colons = ":".join(live.fingerprint[i : i + 2].upper() for i in range(0, 64, 2))
    for trust in ({"ca_file": live.tls.certificate}, {"fingerprint": live.fingerprint}, {"fingerprint": colons}):
        with Client(url=live.url, token=token, **trust) as remote:  # type: ignore[arg-type]
            assert remote.whoami().via.startswith("token")
    with pytest.raises(GpupoolError) as refused:
        Client(url=live.url, token=token, fingerprint="0" * 64)
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
    with Client(url=live.url, token=token, retry_s=0) as distrustful, pytest.raises(GpupoolError) as refused:
        distrustful.pool()
    assert refused.value.code is ErrorCode.POOL_UNREACHABLE
    with Client(url=live.url, token="gpt_0_wrong", ca_file=live.tls.certificate) as stranger:
        with pytest.raises(GpupoolError) as refused:
            stranger.pool()
        assert refused.value.code is ErrorCode.UNAUTHENTICATED
    assert live.app is not None
    live.app.state.attempts.forget("127.0.0.1")


def test_pool_url_is_read_from_environment(live: LivePool, monkeypatch: Any) -> None:
    monkeypatch.setenv("GPUPOOL_URL", live.url)
    monkeypatch.setenv("GPUPOOL_TOKEN", live.token()["secret"])
    monkeypatch.setenv("GPUPOOL_CA", str(live.tls.certificate))
    with Client() as remote:
        assert remote.pool().nodes == 1


@pytest.mark.parametrize(("url", "token"), [("http://x:1", "t"), ("https://x:1", None)])
def test_url_needs_tls_and_token(url: str, token: str | None, monkeypatch: Any) -> None:
    monkeypatch.delenv("GPUPOOL_TOKEN", raising=False)
    with pytest.raises(GpupoolError) as refused:
        Client(url=url, token=token)
    assert refused.value.code in {ErrorCode.INVALID_REQUEST, ErrorCode.UNAUTHENTICATED}


def test_invalid_certificate_file_is_refused(live: LivePool, tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as refused:
        Client(url=live.url, token="t", ca_file=tmp_path / "none.pem")
    assert refused.value.code is ErrorCode.INVALID_FILE


# When the control plane is away


def test_missing_pool_is_reported_at_once(tmp_path: Path) -> None:
    before = time.monotonic()
    with Client(tmp_path / "api.sock") as client, pytest.raises(GpupoolError) as refused:
        client.submit(["true"])
    assert refused.value.code is ErrorCode.POOL_UNREACHABLE
    assert "gpupool up" in refused.value.hint
    assert time.monotonic() - before < 20  # and not the 30 s that a restart is given


def test_oversized_request_is_refused_before_sending(client: Client) -> None:
    with pytest.raises(GpupoolError) as refused:
        client.create_project("big", note="x" * 9_000_000)
    assert refused.value.code is ErrorCode.TOO_LARGE
