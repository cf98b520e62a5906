"""Scripts of Slurm: values, lines of scripts, output patterns, and the table of the documentation."""

from __future__ import annotations

import re
import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli.request import options
from gpupool.cli.request.submit import build_body, build_requests
from gpupool.cli.request.submit_options import SUBMIT
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.slurm import output, values
from gpupool.specs.slurm.options import OPTIONS, REFUSED, SlurmJob
from gpupool.specs.slurm.script import apply_words, is_script, read_script

PAGE = Path(__file__).parents[2] / "docs" / "from-slurm.md"
NOW = datetime(2031, 3, 4, 15, 30, tzinfo=UTC)
ROWS = re.findall(r"^\| `(--[^`]*)` \| (?:`([^`]*)` )?\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
IGNORED = {"env", "env_from", "labels", "request_id", "command"}


def script(folder: Path, *lines: str, first: str = "#!/bin/bash") -> str:
    path = folder / "job.sh"
    path.write_text("\n".join([first, *lines, "true"]) + "\n")
    return str(path)


def body_of(folder: Path, *lines: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    return build_body(options or {}, [script(folder, *lines)], [])


@pytest.mark.parametrize(("slurm", "own"), ROWS, ids=[slurm for slurm, _ in ROWS])
def test_table_of_the_documentation_holds(slurm: str, own: str, tmp_path: Path) -> None:
    found = body_of(tmp_path, f"#SBATCH {slurm}")
    wanted_values, _ = options.parse(SUBMIT, shlex.split(own))
    wanted_values = {"num_gpus": 0, "backoff_limit": 0} | wanted_values
    wanted = build_body(wanted_values, [], ["true"])
    assert {k: v for k, v in found.items() if k not in IGNORED} == {k: v for k, v in wanted.items() if k not in IGNORED}
    assert wanted["env"].items() <= found["env"].items()
    (request,) = build_requests({}, [script(tmp_path, f"#SBATCH {slurm}")], [])
    assert request.command[-1].endswith("job.sh")


def test_table_has_every_option_with_an_effect() -> None:
    words = {word.partition("=")[0] for slurm, _ in ROWS for word in slurm.split()}
    missing = {option.flags[-1] for option in OPTIONS if option.apply and not words & set(option.flags)}
    of_output, of_commands = (
        {"--output", "--error", "--open-mode"},
        {"--wrap", "--parsable", "--wait", "--quiet", "--pty"},
    )
    assert missing == of_output | of_commands | {"--partition", "--comment"}
    assert not {flag for option in OPTIONS for flag in option.flags} & REFUSED.keys()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("1:02:03", 3723), ("2-03", 183600), ("1-0:30", 88200), ("0-00:00:10", 10)],
)
def test_times(text: str, seconds: int) -> None:
    assert values.seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "tasks", "limit"),
    [("0-3", (0, 1, 2, 3), None), ("1-10:2,15%4", (1, 3, 5, 7, 9, 15), 4), ("7", (7,), None), ("3,3,1", (3, 1), None)],
)
def test_array_indices(text: str, tasks: tuple[int, ...], limit: int | None) -> None:
    assert values.indices(text) == (tasks, limit)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0),
        ("now+90", 90),
        ("now+2hours", 7200),
        ("16:00", 1800),
        ("3:00pm", 84600),
        ("midnight", 30600),
        ("tomorrow", 86400),
        ("2031-03-04T15:31:00", 60),
        ("2001-01-01", 0),
    ],
)
def test_begin(text: str, seconds: float) -> None:
    assert values.begin_s(text, NOW) == seconds


@pytest.mark.parametrize(
    ("text", "day", "hour"),
    [
        ("today", 0, 0.0),
        ("08:00", 0, 8.0),
        ("23:30", 0, 23.5),
        ("now-2hours", 0, 13.5),
        ("now-1day", -1, 15.5),
        ("2001-01-01T06:00", None, 6.0),
    ],
)
def test_past_time(text: str, day: int | None, hour: float) -> None:
    found = values.past_time(text, NOW)
    date = datetime(2001, 1, 1) if day is None else NOW + timedelta(days=day)  # noqa: DTZ001 - only its date is used
    assert found.date() == date.date()
    assert found.hour + found.minute / 60 == hour


@pytest.mark.parametrize("text", ["gpu:2", "2", "gpu:v100:2", "v100:2", "gpu", "gpu:a100"])
def test_gpus(text: str) -> None:
    model = next((name for name in ("v100", "a100") if name in text), None)
    assert values.gpus(text) == (model, 2 if "2" in text else 1)


@given(st.text(alphabet="0123456789:-,%+gpunowafter?GM ", max_size=24))
def test_values_are_read_or_refused(text: str) -> None:
    codes: set[ErrorCode] = set()
    for read in (values.seconds, values.memory_mib, values.gpus, values.indices, values.dependencies):
        try:
            read(text)
        except GpupoolError as error:
            codes.add(error.code)
    try:
        values.past_time(text, NOW)
        assert values.begin_s(text, NOW) >= 0
    except GpupoolError as error:
        codes.add(error.code)
    assert codes <= {ErrorCode.INVALID_REQUEST}


def test_lines_end_at_the_first_command(tmp_path: Path) -> None:
    path = script(
        tmp_path, "", "# a comment", "#SBATCH -J first # a remark", "##SBATCH -J no", "cd /", "#SBATCH -J later"
    )
    assert read_script(path, []).options["name"] == "first"


def test_command_line_and_own_lines_win(tmp_path: Path) -> None:
    lines = ["#SBATCH --gres=gpu:2", "#SBATCH -J slurm", "#GPUPOOL -p 0.5 --env A=1", "#SBATCH --export=B=2"]
    body = body_of(tmp_path, *lines, options={"name": "mine", "env": ["A=9"]})
    assert body["name"] == "mine"
    assert body["gpus"] == {"fraction": "0.5"}
    assert (body["env"]["A"], body["env"]["B"]) == ("9", "2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#SBATCH --bogus", "line 3: The option --bogus"),
        ("#SBATCH --exclude=gpu1", "nodes cannot be excluded"),
        ("#SBATCH --time=soon", "line 3: 'soon' is not a time"),
        ("#SBATCH --gres=craynetwork:1", "not a number of GPUs"),
        ("#SBATCH --nodes=2", "--nodes=2 is not possible"),
        ("#SBATCH --nodelist=gpu[1-4]", "takes one node"),
        ("#SBATCH --dependency=after:1", "'after:1' is not possible"),
        ("#SBATCH --dependency=afterok:1?afterany:2", "Alternatives"),
        ("#SBATCH --array=5-1", "not a list of array indices"),
        ("#SBATCH --mem", "--mem needs a value"),
        ('#SBATCH -J "open', "line 3 cannot be read"),
        ("#GPUPOOL --bogus", "after #GPUPOOL"),
    ],
)
def test_refusals_name_the_line(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as caught:
        body_of(tmp_path, "# two", line)
    assert message in caught.value.message
    assert caught.value.hint


def test_options_without_effect_give_notes(tmp_path: Path) -> None:
    found = read_script(script(tmp_path, "#SBATCH --mail-user=ann@example.org", "#SBATCH -p long --exclusive"), [])
    assert [note.partition(" ")[0] for note in found.notes] == ["--mail-user", "-p", "--exclusive"]


def test_variables(tmp_path: Path) -> None:
    body = body_of(tmp_path, "#SBATCH -c 4 --gpus=2 --mem=8G --array=2-8:3 -J name")
    wanted = {"SLURM_CPUS_PER_TASK": "4", "SLURM_GPUS": "2", "SLURM_MEM_PER_NODE": "8192", "SLURM_ARRAY_TASK_MAX": "8"}
    assert wanted.items() <= body["env"].items()
    assert body["env_from"]["SLURM_JOB_ID"] == body["env_from"]["SLURM_ARRAY_JOB_ID"] == "id"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("out.txt", "out.txt"),
        ("slurm-%j.out", "slurm-w1.out"),
        ("%x-%A_%4a-%u@%N", "train it-w1_0007-ann@gpu1"),
        ("100%%-%q%", "100%-%q%"),
        ("$(touch x)`touch y`;%a", "$(touch x)`touch y`;7"),
        ("a b*?[c]%a", "a b*?[c]7"),
    ],
)
def test_output_patterns(pattern: str, name: str, tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "w1", "SLURM_JOB_NAME": "train it", "SLURM_JOB_USER": "ann"}
    env |= {"SLURMD_NODENAME": "gpu1.example", "GPUPOOL_PARAM_TASK": "7", output.VARIABLE: output.PROGRAM}
    for append, lines in ((False, 1), (False, 1), (True, 2)):
        program = ["sh", "-c", 'echo "$SLURM_ARRAY_TASK_ID $1"; echo failed >&2', "x", "an argument"]
        command = output.redirected(program, pattern, "%j.err", append=append)
        subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=30)
        assert (tmp_path / name).read_text() == "7 an argument\n" * lines
        assert (tmp_path / "w1.err").read_text() == "failed\n" * lines
    assert {path.name for path in tmp_path.iterdir()} == {name, "w1.err"}


def test_output_that_cannot_be_written_ends_the_job(tmp_path: Path) -> None:
    command = output.redirected(["touch", str(tmp_path / "ran")], str(tmp_path / "no" / "folder"), "", append=False)
    env = {"PATH": "/usr/bin:/bin", output.VARIABLE: output.PROGRAM}
    assert subprocess.run(command, env=env, check=False, capture_output=True, timeout=30).returncode
    assert not (tmp_path / "ran").exists()


def test_only_files_with_an_interpreter_are_scripts(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo\n")
    assert not is_script(str(tmp_path / "plain"))
    assert not is_script(str(tmp_path))
    assert is_script(script(tmp_path))


def test_words_after_the_options_are_returned() -> None:
    job = SlurmJob(NOW)
    assert apply_words(job, ["-J", "a", "--exclusive", "-n4", "job.sh", "-x"]) == ["job.sh", "-x"]
    assert (job.name, job.tasks) == ("a", 4)


def test_file_without_an_interpreter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#SBATCH -n 1\ntrue\n")
    for words in (["job.sh"], ["./job.sh"], [str(tmp_path / "job.sh"), "argument"]):
        with pytest.raises(GpupoolError, match="does not begin with #!"):
            build_body({}, words, [])
    assert build_body({}, ["job.sh", "true"], [])["name"] == "job.sh"
