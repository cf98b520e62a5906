"""The layout of the packages: how deep imports go, how large folders are, and how small modules are."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pages import ROOT

SOURCE = ROOT / "src"
MAX_FILES = 16  # of one folder, with ``__init__.py``
GROWING = {"gpupool.store.migrations.versions"}  # has one file for each version of the database
MAX_FRAGMENTS = 14
FRAGMENT_LINES = 100


def test_longest_import_chain_in_scheduling_has_nine_modules() -> None:
    modules = [name for name in module_files() if name.startswith("gpupool.scheduling.")]

    @cache
    def longest(module: str) -> tuple[str, ...]:
        below = [longest(name) for name in imports()[module] if name.startswith("gpupool.scheduling.")]
        return (module, *max(below, key=len, default=()))

    chain = max(map(longest, modules), key=len)
    assert len(chain) <= 9, " -> ".join(chain)


def test_folders_have_at_most_sixteen_files() -> None:
    sizes = Counter(map(folder_of, module_files()))
    large = {name: size for name, size in sizes.items() if size > MAX_FILES and name not in GROWING}
    assert large == {}


def test_few_short_modules_serve_one_module_of_their_folder_only() -> None:
    importers = {name: [other for other in module_files() if name in imports()[other]] for name in module_files()}
    fragments = {
        name: users[0]
        for name, users in importers.items()
        if len(users) == 1
        and folder_of(users[0]) == folder_of(name)
        and len(module_files()[name].read_text().splitlines()) < FRAGMENT_LINES
    }
    assert len(fragments) <= MAX_FRAGMENTS, fragments


def folder_of(module: str) -> str:
    return module.rpartition(".")[0]


@cache
def module_files() -> dict[str, Path]:
    """Return the file of each module, by its full name."""
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return the modules that each module imports, anywhere in its text."""
    return {name: frozenset(_imported(name, path)) - {name} for name, path in module_files().items()}


def _imported(module: str, path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            names = [name for alias in node.names for name in (f"{base}.{alias.name}", base)]
        else:
            continue
        yield from (name for name in names if name in module_files())
