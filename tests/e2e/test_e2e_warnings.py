"""Warnings of a real pool: set up on the command line, taken by a real mail server and a real webhook."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from e2e_pool import RealPool, eventually

sys.path.insert(0, str(Path(__file__).parent.parent / "messaging"))

from mail_server import hook_server, mail_server


def test_time_limit_warning_is_sent_by_mail_and_webhook(pool: RealPool) -> None:
    me = pool.json("whoami")["user"]
    with mail_server() as mail, hook_server() as hook:
        pool("user", "set", me, "--email", "ada@example.org")
        mailing = ["--smtp-host", "127.0.0.1", "--smtp-port", str(mail.port), "--smtp-security", "none"]
        (pool.work / "password").write_text("hush\n")
        posting = ["--webhook", hook.url, "--webhook-secret-file", "password"]
        pool("warnings", "set", *mailing, "--sender", "pool@example.org", *posting, "--before", "1h")
        shown = pool.text("warnings", "show")
        assert "127.0.0.1" in shown
        assert "hush" not in shown

        tried = pool.text("warnings", "test")
        assert tried.count("ok, ") == 2
        assert [to for to, _ in mail.mails] == ["ada@example.org"]
        assert len(hook.posts) == 1

        pool("submit", "short", "-g", "0.1", "--max-time", "20s", "--", "sleep", "100")
        assert eventually(lambda: len(mail.mails) == 2 and len(hook.posts) == 2)
        assert mail.mails[1][1]["Subject"] == "gpupool: short reaches its time limit"
        (told,) = hook.documents[1]["warnings"]
        assert (told["kind"], told["name"], told["user"]) == ("time", "short", me)
        replica = pool.json("describe", "short")["replicas"][0]
        assert told["deadline"] == replica["started_at"] + 20
        assert "x-gpupool-signature" in hook.posts[1][0]
        assert "TIME_WARNING" in pool.text("events", "short")

        hook.status = 500
        failed = pool("warnings", "test", "--to", "grace@example.org", ok=False)
        assert failed.returncode == 1
        assert b"webhook: the webhook answered 500" in failed.stdout
        assert mail.mails[2][0] == "grace@example.org"
    pool("warnings", "set", "--smtp-host", "none", "--webhook", "none")
    nowhere = pool("warnings", "test", ok=False)
    assert b"WRONG_STATE" in nowhere.stderr


def test_invalid_settings_are_refused(pool: RealPool) -> None:
    refused = pool("warnings", "set", "--webhook", "ftp://example.org", ok=False)
    assert refused.returncode != 0
    assert b"INVALID_REQUEST" in refused.stderr
    assert b"see docs/warnings.md" in refused.stderr.lower()


def test_mail_at_the_end_of_jobs(own_pool: RealPool) -> None:
    """It needs a pool without earlier jobs: mail about them would come with that about its own."""
    pool = own_pool
    me = pool.json("whoami")["user"]
    os.mkfifo(pool.work / "gate")
    (pool.work / "job.sh").write_text("#!/bin/sh\n#SBATCH -J slurm-job --mail-type=BEGIN,END\nread line < gate\n")
    with mail_server() as mail:
        pool("user", "set", me, "--email", "none")
        told = pool("submit", "unheard", "-n", "0", "--mail-type", "end", "--", "true").stderr
        assert f"gpupool user set {me} --email ADDRESS".encode() in told
        pool("user", "set", me, "--email", "ada@example.org")
        mailing = ["--smtp-host", "127.0.0.1", "--smtp-port", str(mail.port), "--smtp-security", "none"]
        pool("warnings", "set", *mailing, "--sender", "pool@example.org")
        assert b"address" not in pool("submit", "job.sh").stderr
        assert eventually(lambda: mail.mails)
        assert mail.mails[0][0] == "ada@example.org"
        assert mail.mails[0][1]["Subject"] == "gpupool: slurm-job has started"
        (pool.work / "gate").write_text("go\n")
        assert pool.becomes("slurm-job", "succeeded")
        refused = pool("submit", "x", "-n", "0", "--mail-type", "sometimes", "--", "true", ok=False)
        assert b"is not a type of mail" in refused.stderr
