from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pages import ROOT, RUN_KINDS, SHOWN_KINDS, Step, blocks, missing_line, perform, steps

PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = [page for page in PAGES if steps(page)]
A_FEW_TESTS = "scripts/test -q -p no:cacheprovider tests/domain/test_values_round_trip.py"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def bounded(step: Step) -> Step:
    """Replace the command that runs all tests by a small part of them."""
    return replace(step, argv=("bash", "-c", A_FEW_TESTS)) if step.argv[-1] == "scripts/test" else step


@pytest.mark.timeout(400)  # the README alone is forty commands, some of which train
@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_commands_of_a_page_work_as_documented(page: Path, reader: dict[str, str]) -> None:
    for step in steps(page):
        perform(bounded(step), reader)


def test_readme_starts_with_its_two_commands() -> None:
    commands = [step.argv[-1] for step in steps(ROOT / "README.md")]
    assert commands[:2] == ["scripts/try", "scripts/test"]


def test_every_readme_block_is_run() -> None:
    assert {block.kind for block in blocks(ROOT / "README.md")} <= RUN_KINDS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_code_block_has_a_kind(page: Path) -> None:
    assert {block.kind for block in blocks(page)} <= RUN_KINDS | SHOWN_KINDS


@pytest.mark.parametrize(
    ("expected", "said", "missing"),
    [
        (("a", "...", "c"), "a\nb\nc\n", None),
        (("c", "a"), "a\nb\nc\n", "a"),
        (("0.50 free",), "0.25 free\n", "0.50 free"),
        (("job w0f5f73fyqb, 3m36s",), "job w10raqny641, 4s\n", None),
        (("python train …",), "python train.py --lr 1\n", None),
        (("python serve …",), "python train.py --lr 1\n", "python serve …"),
    ],
)
def test_comparison_ignores_only_variable_parts(expected: tuple[str, ...], said: str, missing: str | None) -> None:
    assert missing_line(expected, said) == missing
