"""Git repositories as users write them."""

from __future__ import annotations

import base64

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.git_source import GitSource, parse_git_source
from gpupool.node.files.git_clone import git_environment


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("https://host.example/team/model.git", GitSource("https://host.example/team/model.git", "model")),
        ("git@host.example:team/model.git", GitSource("git@host.example:team/model.git", "model")),
        ("ssh://git@host.example:2222/model", GitSource("ssh://git@host.example:2222/model", "model")),
        (
            "name=code,repository=https://host.example/model,path=src/code,rev=v1.0",
            GitSource("https://host.example/model", "src/code", "v1.0"),
        ),
        (
            "source=https://host.example/a.git,branch=main,target=b",
            GitSource("https://host.example/a.git", "b", "main"),
        ),
    ],
)
def test_sources(text: str, wanted: GitSource) -> None:
    assert parse_git_source(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model",
        "/srv/model",
        "https://",
        "--upload-pack=touch /tmp/x",
        "ext::sh -c touch% /tmp/x",
        "ftp://host.example/model",
        "https://ann:secret@host.example/model",
        "https://token@host.example/model",
        "-oProxyCommand=x:y",
        "ssh://-oProxyCommand=x/y",
        "repository=https://host.example/model,path=../out",
        "repository=https://host.example/model,path=/etc",
        "repository=https://host.example/model,path=.git/hooks",
        "repository=https://host.example/model,rev=--force",
        "repository=https://host.example/model,rev=a..b",
        "repository=https://host.example/model,password=secret",
        "repository=https://host.example/model,colour=red",
        "rev=main",
        "https://host.example/" + "x" * 2000,
        "https://host.example/a\nb",
        "https://[host/model",
    ],
)
def test_refusals(text: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        parse_git_source(text)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "secret" not in str(caught.value.message)
    assert caught.value.hint


def test_credentials_are_for_one_host_over_https() -> None:
    env = {"GITSYNC_USERNAME": "ann", "GITSYNC_PASSWORD": "secret", "GIT_TRACE_CURL": "1", "HOME": "/home/ann"}
    made = git_environment(env, "https://host.example:8443/team/model")
    assert made["GIT_CONFIG_KEY_0"] == "http.https://host.example:8443/.extraHeader"
    assert made["GIT_CONFIG_VALUE_0"] == "Authorization: Basic " + base64.b64encode(b"ann:secret").decode()
    assert not {"GITSYNC_USERNAME", "GITSYNC_PASSWORD", "GIT_TRACE_CURL"} & made.keys()
    assert made["HOME"] == "/home/ann"
    for url in ("http://host.example/model", "git@host.example:model", "file:///srv/model"):
        assert "secret" not in str(git_environment(env, url))
