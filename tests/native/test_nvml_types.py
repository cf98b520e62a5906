"""native/include/nvml_types.h says of NVML's structures what the real header says, where one is at hand."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from requires import cc

NATIVE = Path(__file__).parents[2] / "native"
HEADERS = (
    Path(sysconfig.get_path("purelib")) / "nvidia/cu13/include/nvml.h",
    Path("/usr/local/cuda/include/nvml.h"),
)
# What the compiler is asked about each structure of ours: its members, in the order of the file.
_STRUCT = re.compile(r"typedef struct \{(?:[^{}]|\{[^{}]*\})*\} (nvml\w+);")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def members(body: str) -> list[str]:
    """Return the names declared in a structure; a union counts as its own name."""
    body = re.sub(r"union \{[^{}]*\} (\w+);", r"int \1;", body)
    names = []
    for declaration in body.split(";"):
        for part in declaration.split(","):
            found = re.search(r"(\w+)\s*(\[[^\]]*\])?\s*$", part)
            if found:
                names.append(found.group(1))
    return names


def questions() -> str:
    text = _COMMENT.sub("", (NATIVE / "include/nvml_types.h").read_text())
    lines = []
    for match in _STRUCT.finditer(text):
        name = match.group(1)
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        body = match.group(0)[match.group(0).index("{") + 1 : match.group(0).rindex("}")]
        lines.extend(f'printf("{name}.{m} %zu\\n", offsetof({name}, {m}));' for m in members(body))
    codes = re.findall(r"\b(NVML_(?:SUCCESS|ERROR_\w+))\b", text)
    lines.extend(f'printf("{code} %d\\n", (int){code});' for code in codes)
    return "\n".join(lines)


def answers(header: Path, folder: Path) -> str:
    source = folder / "ask.c"
    includes = f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\n'
    source.write_text(f"{includes}int main(void) {{\n{questions()}\nreturn 0;\n}}\n")
    cc("-o", folder / "ask", source)
    return subprocess.run([folder / "ask"], check=True, capture_output=True, text=True).stdout


def test_structures_and_codes_are_those_of_the_real_header(tmp_path: Path) -> None:
    real = next((path for path in HEADERS if path.exists()), None)
    if real is None:
        pytest.skip("no nvml.h: install nvidia-nvml-dev")
    ours = answers(NATIVE / "include/nvml_types.h", tmp_path)
    assert ours == answers(real, tmp_path)
    assert ours.count("\n") > 100
