"""A class name belongs to one module, so a search for it finds one class."""

from __future__ import annotations

import ast
from collections import defaultdict

from pages import ROOT


def test_class_name_belongs_to_one_module() -> None:
    modules = defaultdict[str, set[str]](set)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1} == {}
