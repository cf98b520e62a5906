"""Structures, numbers and pages have the layout that they must have, byte by byte."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import lease_folder
import pytest
from native_harness import NATIVE, header_folder

from requires import cc

TYPES = NATIVE / "include/cuda_types.h"
ENUMS = NATIVE / "include/cuda_enums.h"
# Declared for the checks of GP_OPAQUE and the like only as far as their names go.
_TOKEN = re.compile(r"[{};]|[^{};]+")


def preprocessed(native_out: Path) -> str:
    return cc("-E", "-P", f"-I{native_out}", f"-I{NATIVE / 'include'}", TYPES)


def bodies(text: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text between its braces) of each `typedef <kind> {...} name;`."""
    for opened in re.finditer(rf"\btypedef {kind}\s*\{{", text):
        depth, at = 1, opened.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        name = re.match(r"\s*(\w+)\s*;", text[at:])
        assert name is not None
        yield name[1], text[opened.end() : at - 1]


def members(body: str) -> list[str]:
    """Return the paths of all members, with those of named and unnamed inner structures."""
    paths: list[str] = []
    opened: list[list[str]] = []  # members of the inner structures that are open
    for token in _TOKEN.findall(body):
        declaration = token.strip()
        if declaration == "{":
            opened.append(paths)
            paths = []
        elif declaration == "}":
            inner, paths = paths, opened.pop()
            paths.append("\0")  # until the name of the inner structure is known
            pending = inner
        elif paths and paths[-1] == "\0":
            paths.pop()
            name = declaration if declaration != ";" else ""
            paths += [f"{name}.{path}" for path in pending] if name else pending
        elif declaration != ";" and not re.fullmatch(r"(struct|union)", declaration):
            paths += re.findall(r"(\w+)\s*(?:\[[^\]]*\])?\s*(?:,|$)", declaration)
    return paths


def questions(text: str) -> list[str]:
    """Return expressions whose values must be equal with our declarations and with the real ones."""
    asked = []
    for kind in ("struct", "union"):
        for name, body in bodies(text, kind):
            asked.append(f"sizeof({name})")
            asked += [f"offsetof({name}, {member})" for member in members(body)]
    for name, body in bodies(text, "enum"):
        asked.append(f"sizeof({name})")
        asked += re.findall(r"\b(CU\w+)\s*=", body)
    plain = re.findall(r"^typedef (?!struct|union|enum)[\w ]+?\b(CU\w+|cuuint\w+);", text, re.MULTILINE)
    handles = re.findall(r"^typedef struct gp_\w+ \*(\w+);", text, re.MULTILINE)
    asked += [f"sizeof({name})" for name in (*plain, *handles)]
    return asked + re.findall(r"^#define (CU\w+) [(\w]", ENUMS.read_text(), re.MULTILINE)


def answers(asked: list[str], folder: Path, *options: str) -> dict[str, str]:
    lines = "".join(f'    printf("%lld\\n", (long long)({question}));\n' for question in asked)
    (folder / "ask.c").write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <cuda_types.h>\nint main(void) {{\n{lines}}}\n"
    )
    program = folder / "ask"
    cc("-std=gnu11", "-w", *options, "-o", program, folder / "ask.c")
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(asked, said, strict=True))


def test_types_and_numbers_are_those_of_the_real_header(native_out: Path, tmp_path: Path) -> None:
    headers = header_folder("cuda.h")
    if headers is None:
        pytest.skip("no cuda.h: install nvidia-cuda-runtime")
    asked = questions(preprocessed(native_out))
    own = [f"-I{native_out}", f"-I{NATIVE / 'include'}"]
    ours = answers(asked, tmp_path, *own)
    real = answers(asked, tmp_path, *own, "-DGPUPOOL_CHECK_HEADERS", f"-I{headers}")
    assert ours == real
    assert len(asked) > 500


def test_members_of_inner_structures_are_found() -> None:
    body = "int a, b[3]; union { struct { int c; } d; void *e; }; struct { int f; } g; char h[sizeof(int)];"
    assert members(body) == ["a", "b", "d.c", "e", "g.f", "h"]


def test_page_layout_of_tests_equals_that_of_library(tmp_path: Path) -> None:
    structures = {
        "gpupool_control_header": lease_folder.HEADER_FIELDS,
        "gpupool_control_gpu": lease_folder.CONTROL_FIELDS,
        "gpupool_status_gpu": lease_folder.STATUS_FIELDS,
        "gpupool_slot": lease_folder.SLOT_FIELDS,
    }
    size = {"Q": 8, "q": 8, "I": 4}
    checks = [
        f'_Static_assert(offsetof(struct {structure}, {field}) == {offset}, "");\n'
        f'_Static_assert(sizeof(((struct {structure} *)0)->{field}) == {size[kind]}, "");\n'
        for structure, fields in structures.items()
        for field, (offset, kind) in fields.items()
    ]
    numbers = {"GPUPOOL_PAGES_MAGIC": lease_folder.MAGIC, "GPUPOOL_PAGES_ABI": lease_folder.ABI}
    numbers |= {"sizeof(struct gpupool_status_gpu)": lease_folder.STATUS_GPU_BYTES, "GPUPOOL_SLOTS": lease_folder.SLOTS}
    checks += [f'_Static_assert({name} == {value}, "");\n' for name, value in numbers.items()]
    (tmp_path / "pages.c").write_text("#include <stddef.h>\n#include <gpupool/pages.h>\n" + "".join(checks))
    cc("-std=gnu11", "-fsyntax-only", f"-I{NATIVE / 'include'}", tmp_path / "pages.c")
