from __future__ import annotations

import gzip
import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAM = EXAMPLES / "train_digits.py"


def command(*options: object) -> list[str]:
    return [sys.executable, str(PROGRAM), *map(str, options)]


def train(*options: object, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL")}
    return subprocess.run(command(*options), capture_output=True, text=True, env=plain | env, check=False)


def epochs(output: str) -> list[str]:
    return re.findall(r"^epoch .*$", output, re.MULTILINE)


def test_training_reaches_95_percent_accuracy() -> None:
    done = train()
    assert done.returncode == 0, done.stderr
    found = re.search(r"final test accuracy: ([\d.]+)%", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) >= 95
    assert re.search(r"throughput: [\d,]+ images/s", done.stdout)


def test_run_depends_only_on_the_seed() -> None:
    first, again, other = train("--epochs", 2), train("--epochs", 2), train("--epochs", 2, "--seed", 1)
    assert epochs(first.stdout) == epochs(again.stdout) != epochs(other.stdout)


def test_resumed_run_equals_uninterrupted_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "state.npz"
    whole = train("--epochs", 4)
    train("--epochs", 2, "--checkpoint", checkpoint)
    rest = train("--epochs", 4, "--checkpoint", checkpoint)
    assert "continuing after epoch 2" in rest.stdout
    assert epochs(rest.stdout) == epochs(whole.stdout)[2:]


def test_sigterm_leaves_a_checkpoint_and_status_143(tmp_path: Path) -> None:
    checkpoint = tmp_path / "state.npz"
    options = command("--epochs", 100_000, "--checkpoint", checkpoint)
    with subprocess.Popen(options, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("epoch   2"):
                running.send_signal(signal.SIGTERM)
                break
        rest = running.stdout.read()
    assert running.returncode == 128 + signal.SIGTERM, rest
    with np.load(checkpoint) as saved:
        assert saved["epochs_done"] >= 2
    assert "continuing after epoch" in train("--epochs", 1, "--checkpoint", checkpoint).stdout


def test_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "state.npz"
    train("--epochs", 1, "--hidden", 16, "--checkpoint", checkpoint)
    other = train("--epochs", 2, "--hidden", 32, "--checkpoint", checkpoint)
    assert other.returncode == 1
    assert "another size" in other.stderr


def test_diverging_training_is_a_failure() -> None:
    done = train("--lr", 1e9, "--epochs", 1)
    assert done.returncode == 1
    assert "smaller --lr" in done.stderr
    assert "Traceback" not in done.stderr


def test_example_prints_its_slice() -> None:
    given = train("--epochs", 1, GPUPOOL_GPU_SHARE="0.10", GPUPOOL_GPU_MEMORY_MIB="1638", GPUPOOL_EMULATED="1")
    assert "slice:  0.10 of a GPU, 1638 MiB, emulated" in given.stdout
    assert "started without a pool" in train("--epochs", 1).stdout


def test_example_does_not_import_gpupool() -> None:
    assert "import gpupool" not in PROGRAM.read_text()
    assert "from gpupool" not in PROGRAM.read_text()


def test_data_is_the_published_file_with_its_licence() -> None:
    data = (EXAMPLES / "data" / "digits.csv.gz").read_bytes()
    about = (EXAMPLES / "data" / "README.md").read_text()
    assert hashlib.sha256(data).hexdigest() in about
    assert "CC BY 4.0" in about
    assert "10.24432/C50P49" in about
    rows = gzip.decompress(data).splitlines()
    assert len(rows) == 1797
    assert {row.count(b",") for row in rows} == {64}


@pytest.mark.parametrize("mistake", [("--epochs", 0), ("--hidden", -1), ("--lr", "fast")])
def test_invalid_options_are_refused(mistake: tuple[object, ...]) -> None:
    assert train(*mistake).returncode == 2
