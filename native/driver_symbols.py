#!/usr/bin/env python3
"""List what NVIDIA's own libraries export: native/driver_symbols.py FILE ...

Read the dynamic symbols of each FILE (libcuda.so.550.163.01, libnvidia-ml.so.550.163.01) and write their names into
generated/driver_symbols.txt, which is committed. The list keeps its other versions. It has names only, no code.

The share library replaces these libraries, so a function that is missing in it is missing for the program. Headers do
not declare all functions: the list shows the others. generate.py adds them to the build, and tests/native compares the
build with the list.

The libraries come from Debian's packages in non-free: libcuda1 and libnvidia-ml1, libnvidia-tesla-*-cuda1 and
libnvidia-tesla-*-ml1 for older drivers. Unpack them, do not install them:

    apt-get download libcuda1 libnvidia-ml1
    for package in *.deb; do dpkg-deb -x "$package" unpacked; done
    native/driver_symbols.py $(find unpacked -type f -name 'lib*.so.[0-9]*.*')
"""

import re
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import generate

HEADER = (
    "# Symbols that NVIDIA's libraries export, names only. Written by native/driver_symbols.py, which says how.\n"
    "# A section: [library kind versions], then the names that these versions export and no other of the list.\n"
)
MACHINES = {62: "", 183: "/aarch64"}  # e_machine -> what is added to the version
DYNAMIC_SYMBOLS = 11  # sh_type
KINDS = {0: "function", 1: "data", 2: "function", 6: "data", 10: "function"}  # types of symbols; 0: not said
VISIBLE = (1, 2, 10)  # bindings: global, weak, unique
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class ElfError(Exception):
    """A file is no library that can be read here; the text says why."""


def exported(file: Path) -> dict[str, str]:
    """Return the symbols that a 64-bit little-endian library defines for others: name -> function or data."""
    data = file.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError(f"{file} is not a 64-bit little-endian ELF file")
    (at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, at + index * size) for index in range(count)]
    table = next((section for section in sections if section[1] == DYNAMIC_SYMBOLS), None)
    if table is None:
        raise ElfError(f"{file} has no dynamic symbols")
    names = sections[table[6]][4]
    found = {}
    for offset in range(table[4], table[4] + table[5], _SYMBOL.size):
        name, info, _, section, _, _ = _SYMBOL.unpack_from(data, offset)
        if section != 0 and info >> 4 in VISIBLE:
            found[data[names + name : data.index(0, names + name)].decode()] = KINDS[info & 15]
    return found


def library_version(file: Path) -> tuple[str, str]:
    """Return the library's name and version: ("libcuda.so.1", "550.163.01")."""
    named = re.fullmatch(r"(lib[\w-]+\.so)\.(\d+\.\d+(?:\.\d+)?)", file.name)
    if named is None:
        raise ElfError(f"{file}: its name does not end with the driver's version")
    (machine,) = struct.unpack_from("<H", file.read_bytes(), 18)
    return f"{named[1]}.1", named[2] + MACHINES[machine]


def merge(sections: Iterable[generate.Symbols], files: Iterable[Path]) -> list[generate.Symbols]:
    """Return the sections with the versions of these files added or replaced."""
    kinds: dict[tuple[str, str], dict[str, str]] = {}  # (soname, version) -> name -> kind
    for section in sections:
        for version in section.versions:
            kinds.setdefault((section.soname, version), {}).update(dict.fromkeys(section.names, section.kind))
    for file in files:
        kinds[library_version(file)] = exported(file)
    versions: dict[tuple[str, str, str], list[str]] = {}  # (soname, kind, name) -> versions
    for soname, version in sorted(kinds):
        for name, kind in kinds[soname, version].items():
            versions.setdefault((soname, kind, name), []).append(version)
    names: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for (soname, kind, name), of in versions.items():
        names.setdefault((soname, kind, tuple(of)), set()).add(name)
    return sorted(generate.Symbols(*key, frozenset(found)) for key, found in names.items())


def text_of(sections: Iterable[generate.Symbols]) -> str:
    """Return the text of driver_symbols.txt."""
    lines = [HEADER]
    for section in sections:
        lines.append(f"\n[{section.soname} {section.kind} {' '.join(section.versions)}]\n")
        lines += [f"{name}\n" for name in sorted(section.names)]
    return "".join(lines)


def main(arguments: list[str]) -> int:
    """Add the named files to the list."""
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    known = generate.parse_symbols(generate.read_list(generate.DRIVER_SYMBOLS))
    try:
        merged = merge(known, map(Path, arguments))
    except (OSError, ElfError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    generate.write(generate.HERE / "generated", {generate.DRIVER_SYMBOLS: text_of(merged)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
