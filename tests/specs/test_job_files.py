"""Job files: what they mean, and errors that point at the place."""

import os
import re
from pathlib import Path

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.jobfile import load_job_file
from gpupool.specs.request import parse_request

EXAMPLES = Path(__file__).parent / "examples"
GOOD = sorted((EXAMPLES / "good").iterdir())
BAD = sorted((EXAMPLES / "bad").glob("*.yml"))
EXPECTED = re.compile(r"# expect: (\w+) (\d+:\d+) (.*)")


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_good_examples_are_read_and_survive_a_round_trip(path: Path) -> None:
    for request in load_job_file(path):
        assert parse_request(request.to_body()) == request


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_bad_examples_are_refused_at_the_place_they_name(path: Path) -> None:
    code, place, words = EXPECTED.match(path.read_text()).groups()
    with pytest.raises(GpupoolError) as caught:
        load_job_file(path, name="job.yml")
    assert caught.value.code == code
    assert caught.value.message.startswith(f"job.yml:{place}: ")
    assert words.strip() in caught.value.message + caught.value.hint


def test_scalars_of_text_fields_are_text_as_written() -> None:
    request = load_job_file(EXAMPLES / "good" / "everything.yml")[0]
    assert request.env == {"EPOCHS": "10", "VERSION": "1.10", "DEBUG": "no", "LEVEL": "on"}
    assert request.gpus.labels["rack"] == "07"
    assert request.request_id == "2024-01-01"
    assert request.umask == 0o027
    assert request.sweep.grid["lr"] == [0.001, 0.01]


def test_field_named_on_is_not_a_boolean() -> None:
    assert load_job_file(b"kind: exec\non: lease1\ncommand: [ls]\n")[0].on == "lease1"


def test_compute_policy_none_is_a_string() -> None:
    assert load_job_file(b"command: [ls]\ngpus: {fraction: 0.5, compute: none}\n")[0].gpus.compute == "none"


def test_duplicate_json_key_is_an_error_with_position() -> None:
    with pytest.raises(GpupoolError, match=r"broken\.json:1:34: 'name' is given twice"):
        load_job_file((EXAMPLES / "bad" / "broken.json").read_bytes(), name="broken.json")


def test_several_documents_in_order() -> None:
    requests = load_job_file(EXAMPLES / "good" / "several.yml")
    assert [request.name for request in requests] == ["prepare", "train"]


@pytest.mark.parametrize(
    ("content", "folder"), [(b"", "/home/a"), (b"workdir: sub\n", "/home/a/sub"), (b"workdir: /data\n", "/data")]
)
def test_folders_are_completed_where_the_caller_stands(content: bytes, folder: str) -> None:
    assert load_job_file(b"command: [ls]\n" + content, folder="/home/a")[0].workdir == folder


def test_file_of_100_mb_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "job.yml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)  # no block of it exists: reading would find NUL bytes, not yaml
    with pytest.raises(GpupoolError) as caught:
        load_job_file(path)
    assert caught.value.code is ErrorCode.TOO_LARGE


def test_content_above_the_limit_is_refused() -> None:
    with pytest.raises(GpupoolError) as caught:
        load_job_file(b"#" * (4 * 2**20 + 1))
    assert caught.value.code is ErrorCode.TOO_LARGE


def test_pipe_as_job_file_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(GpupoolError, match="not a regular file"):
        load_job_file(path)


@pytest.mark.parametrize(
    ("name", "words"), [("gone.yml", "No such file"), (".", "directory|regular"), ("a\0b", "null byte")]
)
def test_unreadable_file_is_reported(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(GpupoolError, match=words) as caught:
        load_job_file(f"{tmp_path}/{name}")
    assert caught.value.code is ErrorCode.INVALID_FILE


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"---\n---\n", b"null\n"])
def test_empty_file_is_refused(content: bytes) -> None:
    with pytest.raises(GpupoolError):
        load_job_file(content)


def test_aliases_that_multiply_are_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(GpupoolError, match="repeated aliases counted") as caught:
        load_job_file("\n".join(levels).encode())
    assert caught.value.code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize("opening", [b"[", b"{a: ", b"- "])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    with pytest.raises(GpupoolError, match="nested deeper than 50"):
        load_job_file(opening * 100_000)


def test_too_many_values_and_documents_are_refused() -> None:
    for content in (b"command: [" + b"a," * 500_000 + b"]", b"--- {command: [a]}\n" * 1001):
        with pytest.raises(GpupoolError) as caught:
            load_job_file(content)
        assert caught.value.code is ErrorCode.TOO_LARGE
