#!/usr/bin/env python3
"""Make the tables that the native build needs.

    generate.py lists <folder of cuda.h> ...   write generated/*.txt from NVIDIA's headers; the result is committed

build.py writes <out>/generated/* from generated/*.txt and a look at the sources.

Lists hold facts only: the names that the driver and NVML export, the types of their parameters, and which export
`cuGetProcAddress` means by a name, a version and a stream flag. They are a union: a name is never taken out because a
newer header lacks it. driver_symbols.txt, which driver_symbols.py writes, adds the functions that are in no header.
Tables depend on which functions are hooks, so they are made at build time; that needs no header of NVIDIA's and nothing
but Python's standard library.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CUDA_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
TYPEDEF_HEADERS = tuple(f"cuda{part}Typedefs.h" for part in ("", "GL", "EGL", "VDPAU", "Profiler"))
STREAM_SUFFIXES = ("_ptsz", "_ptds")
C_WORDS = {"void", "char", "short", "int", "long", "unsigned", "float", "double", "const", "size_t", "struct"}
PER_THREAD_STREAM = 2  # the flag by which cuGetProcAddress is asked for those
DRIVER_SYMBOLS = "driver_symbols.txt"
UNKNOWN_TYPES = "?"  # the parameters of a function that no header declares
# Debuggers set breakpoints on these functions, which the driver calls. They search all loaded libraries for the name
# and take the first. In the proxy's function, which nobody calls, the breakpoint would have no effect.
BREAKPOINTS = frozenset({"cudbgReportDriverApiError", "cudbgReportDriverInternalError"})


@dataclass(frozen=True, slots=True)
class Library:
    """One of the two libraries with a proxy."""

    name: str  # as in the names of files: cuda, nvml
    soname: str  # of the library itself
    prefix: str  # of its functions
    sources: str  # folder whose files hold its hooks
    result: str  # the type that its functions return
    types: tuple[str, ...]  # headers with this project's own declarations
    by_hand: frozenset[str] = frozenset()  # functions of the proxy that are not in its tables


CUDA = Library("cuda", "libcuda.so.1", "cu", "share", "CUresult", ("include/cuda_enums.h", "include/cuda_types.h"))
NVML = Library(
    "nvml",
    "libnvidia-ml.so.1",
    "nvml",
    "nvml",
    "nvmlReturn_t",
    ("include/nvml_types.h",),
    frozenset({"nvmlErrorString", "nvmlInternalGetExportTable"}),
)


# -- lists: reading NVIDIA's headers --------------------------------------------------------------------------------


def without_comments(text: str) -> str:
    """Return C source without comments, with continued lines joined."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text).replace("\\\n", " ")


def statements(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield ("define", name, value), ("undef", name, "") and ("function", name, parameters), in textual order."""
    pattern = re.compile(
        r"^[ \t]*#[ \t]*define[ \t]+(?P<define>\w+)[ \t]+(?P<value>\S.*?)[ \t]*$"
        r"|^[ \t]*#[ \t]*undef[ \t]+(?P<undef>\w+)"
        r"|(?:\bCUDAAPI|\bDECLDIR)\s+(?P<function>(?:cu|nvml)[A-Z]\w*)\s*\((?P<parameters>[^;{]*)\)\s*;",
        re.MULTILINE,
    )
    for found in pattern.finditer(without_comments(text)):
        if found["define"]:
            yield "define", found["define"], found["value"]
        elif found["undef"]:
            yield "undef", found["undef"], ""
        else:
            yield "function", found["function"], found["parameters"]


def exports_meant(value: str) -> list[str]:
    """Return the exports that a macro's value stands for: itself, or itself and its per-thread form."""
    per_thread = re.fullmatch(r"__CUDA_API_PT(SZ|DS)\((\w+)\)", value)
    if per_thread:
        return [per_thread[2], f"{per_thread[2]}_pt{per_thread[1].lower()}"]
    return [value] if re.fullmatch(r"(cu|nvml)[A-Z]\w*", value) and not value.endswith(STREAM_SUFFIXES) else []


def parameter_types(parameters: str) -> str:
    """Return `size_t *free, size_t *total` as `size_t *, size_t *`."""
    types = []
    for parameter in parameters.split(","):
        words = " ".join(re.sub(r"\*", " * ", parameter).split())
        array = re.fullmatch(r"(.*?)\s+\w+\s*\[\w*\]", words)
        if array:
            words = f"{array[1]} *"
        elif re.search(r"[\w*] \w+$", words) and words not in {"unsigned int", "unsigned long long", "const void *"}:
            words = words if words.startswith("const ") and words.count(" ") == 1 else words.rsplit(" ", 1)[0]
        types.append(words.replace("* *", "**"))
    return ", ".join(types)


def functions_of(text: str) -> dict[str, str]:
    """Return every export that a header declares, with the types of its parameters."""
    macros: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for kind, name, value in statements(text):
        if kind == "define" and exports_meant(value):
            macros[name] = exports_meant(value)
        elif kind == "undef":
            macros.pop(name, None)
        elif kind == "function":
            for export in macros.get(name, [name]):
                found.setdefault(export, parameter_types(value))
    return with_unversioned(found, macros)


def unversioned_functions_of(text: str) -> dict[str, str]:
    """Return NVML's functions without a version suffix, which its header declares only on request."""
    return functions_of(text.partition("#ifdef NVML_NO_UNVERSIONED_FUNC_DEFS")[2].partition("#endif")[0])


def with_unversioned(found: dict[str, str], macros: dict[str, list[str]]) -> dict[str, str]:
    """Add per-thread forms that are only named where the macro is, e.g. of functions declared before it."""
    for exports in macros.values():
        known = [export for export in exports if export in found]
        for export in exports if known else []:
            found.setdefault(export, found[known[0]])
    return found


def asked_versions(text: str) -> set[tuple[str, int, str]]:
    """Yield (base name, version, "" or "_ptsz" or "_ptds") for each pointer type of a typedef header."""
    pattern = re.compile(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)")
    return {(name, int(version), suffix) for name, version, suffix in pattern.findall(without_comments(text))}


def form(export: str) -> tuple[str, int, str]:
    """Return (base name, number of its form, stream suffix): cuMemAlloc_v2 is ("cuMemAlloc", 2, "")."""
    suffix = next((s for s in STREAM_SUFFIXES if export.endswith(s)), "")
    plain = export.removesuffix(suffix)
    numbered = re.fullmatch(r"(\w+?)_v(\d)", plain)
    return (numbered[1], int(numbered[2]), suffix) if numbered else (plain, 1, suffix)


def version_table(exports: Iterable[str], asked: set[tuple[str, int, str]]) -> list[tuple[str, int, int, str]]:
    """Return (base name, first version, stream flag, export): the n-th version of a name means its n-th form."""
    forms: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for export in exports:
        base, number, suffix = form(export)
        forms.setdefault((base, suffix), []).append((number, export))
    table = []
    for (base, suffix), numbered in forms.items():
        versions = sorted(version for name, version, of in asked if (name, of) == (base, suffix))
        if len(versions) != len(numbered):
            raise SystemExit(f"{base}{suffix}: {len(numbered)} forms in the headers but {len(versions)} versions")
        flag = PER_THREAD_STREAM if suffix else 0
        pairs = zip(versions, sorted(numbered), strict=True)
        table += [(base, version, flag, export) for version, (_, export) in pairs]
    return sorted(table)


def read_all(folders: Iterable[Path], names: Iterable[str]) -> Iterator[str]:
    """Return the text of every header of these names in these folders."""
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                yield (folder / name).read_text(encoding="utf-8", errors="replace")


def make_lists(folders: list[Path]) -> dict[str, str]:
    """Return the committed lists as file name -> text, with the additions of these folders' headers."""
    cuda, nvml = read_api(CUDA), read_api(NVML)
    asked = {(base, version, form(export)[2]) for base, version, _, export in read_versions()}
    for text in read_all(folders, CUDA_HEADERS):
        cuda = functions_of(text) | cuda
    for text in read_all(folders, ("nvml.h",)):
        nvml = functions_of(text) | unversioned_functions_of(text) | nvml
    for text in read_all(folders, TYPEDEF_HEADERS):
        asked |= asked_versions(text)
    versions = version_table(cuda, asked)
    return {
        "cuda_api.txt": "".join(f"{name}({types})\n" for name, types in sorted(cuda.items())),
        "cuda_versions.txt": "".join(f"{base} {v} {flag} {export}\n" for base, v, flag, export in versions),
        "nvml_api.txt": "".join(f"{name}({types})\n" for name, types in sorted(nvml.items())),
    }


# -- tables: what the build needs -------------------------------------------------------------------------------------


def read_list(name: str) -> list[str]:
    """Return the lines of a committed list; none if it does not exist yet."""
    path = HERE / "generated" / name
    return path.read_text(encoding="ascii").splitlines() if path.is_file() else []


def read_api(library: Library) -> dict[str, str]:
    """Return the committed list of a library's exports: name -> types of its parameters."""
    lines = read_list(f"{library.name}_api.txt")
    return {line.partition("(")[0]: line.partition("(")[2].removesuffix(")") for line in lines}


@dataclass(frozen=True, slots=True, order=True)
class Symbols:
    """A section of driver_symbols.txt: names of one kind that exactly these versions of a library export."""

    soname: str
    kind: str  # function, data
    versions: tuple[str, ...]  # 550.163.01, 550.163.01/aarch64
    names: frozenset[str]


def parse_symbols(lines: Iterable[str]) -> list[Symbols]:
    """Return the sections of driver_symbols.txt."""
    sections: list[tuple[list[str], set[str]]] = []
    for line in lines:
        if line.startswith("["):
            sections.append((line.strip("[]").split(), set()))
        elif line and not line.startswith("#"):
            sections[-1][1].add(line)
    return [Symbols(head[0], head[1], tuple(head[2:]), frozenset(names)) for head, names in sections]


def driver_symbols(library: Library, kind: str) -> set[str]:
    """Return what any listed version of a real library exports of this kind."""
    sections = parse_symbols(read_list(DRIVER_SYMBOLS))
    return set().union(*(s.names for s in sections if (s.soname, s.kind) == (library.soname, kind)))


def read_exports(library: Library) -> dict[str, str]:
    """Return the functions that the proxy has in its tables, sorted: name -> types of the parameters.

    These are the functions of the headers, and those that only the real libraries show, with UNKNOWN_TYPES. Names
    without the library's prefix belong to other libraries (NVML 450 has some of libnvidia-nscq): a preloaded library
    comes first, so it would hide the functions of those.
    """
    shown = driver_symbols(library, "function") - library.by_hand - BREAKPOINTS
    undeclared = (name for name in shown if name.startswith(library.prefix))
    return dict(sorted((dict.fromkeys(undeclared, UNKNOWN_TYPES) | read_api(library)).items()))


def read_versions() -> list[tuple[str, int, int, str]]:
    """Return the committed list of the meaning of names in cuGetProcAddress."""
    rows = [line.split() for line in read_list("cuda_versions.txt")]
    return [(base, int(version), int(flag), export) for base, version, flag, export in rows]


def hooks_of(library: Library, folder: Path = HERE) -> list[str]:
    """Return the functions that the sources define with GP_HOOK, sorted."""
    pattern = re.compile(rf"^GP_HOOK\s+(?:\w+[\s*]+)+?({library.prefix}[A-Z]\w*)\s*\(", re.MULTILINE)
    sources = sorted((folder / library.sources).glob("*.c"))
    return sorted({name for source in sources for name in pattern.findall(source.read_text(encoding="utf-8"))})


def index_header(library: Library, api: dict[str, str]) -> str:
    """Return an enum with one member for each export."""
    tag, count = ("gp_api", "GP_COUNT") if library is CUDA else ("gp_nvml_api", "GP_NVML_COUNT")
    members = "".join(f"    GP_{name},\n" for name in api)
    guard = f"GPUPOOL_{library.name.upper()}_INDEX_H"
    return f"#ifndef {guard}\n#define {guard}\nenum {tag} {{\n{members}    {count}\n}};\n#endif\n"


def names_header(library: Library, api: dict[str, str]) -> str:
    """Return all names in one string with their offsets: without pointers, so nothing is relocated at load time."""
    offsets, at = [], 0
    for name in api:
        offsets.append(at)
        at += len(name) + 1
    text = "".join(f'    "{name}\\0"\n' for name in api)
    numbers = ",".join(str(offset) for offset in offsets)
    return (
        f"static const char gp_{library.name}_names[] =\n{text};\n"
        f"static const uint16_t gp_{library.name}_name_at[] = {{{numbers}}};\n"
    )


def hooks_source(library: Library, api: dict[str, str], hooks: list[str]) -> str:
    """Return a table of (index, hook). The functions' types do not matter: only their addresses are used."""
    index = "index.h" if library is CUDA else f"{library.name}_index.h"
    lines = [f'#include "generated/{library.name}_hooks.h"', f'#include "generated/{index}"']
    lines += [f"void {name}(void);" for name in hooks]
    lines.append("const struct gp_hook gp_hooks[] = {")
    lines += [f"    {{GP_{name}, {name}}}," for name in hooks if name in api]
    lines += ["};", f"const unsigned gp_hook_count = {sum(name in api for name in hooks)};"]
    return "\n".join(lines) + "\n"


def hooks_header(library: Library) -> str:
    """Return the type of the table of hooks."""
    guard = f"GPUPOOL_{library.name.upper()}_HOOKS_H"
    return (
        f"#ifndef {guard}\n#define {guard}\nstruct gp_hook {{\n    unsigned api; /* its index */\n"
        "    void (*hook)(void);\n};\nextern const struct gp_hook gp_hooks[];\nextern const unsigned gp_hook_count;\n"
        "#endif\n"
    )


def jumps_source(api: dict[str, str], hooks: list[str]) -> str:
    """Return the jump of every export that is not a hook; jump.h explains JUMP."""
    jumps = "".join(f"JUMP {name}, {at}\n" for at, name in enumerate(api) if name not in hooks)
    return f'#include "gpupool/jump.h"\n{jumps}JUMPS_END\n'


def exports_header(api: dict[str, str]) -> str:
    """Return the exports of the fake driver, in the order of the index; forms for per-thread streams are marked."""
    lines = []
    for name, types in api.items():
        base = name.removesuffix("_ptsz").removesuffix("_ptds")
        count = types.count(",") + 1
        lines.append(f"GP_EXPORT({name})\n" if base == name else f"GP_STREAM_EXPORT({name}, {base}, {count})\n")
    return "".join(lines)


def versions_header() -> str:
    """Return version, stream flag, length of the base name and export of each entry, also without pointers."""
    rows = read_versions()
    body = "".join(f"    {{{version}, {flag}, {len(base)}, GP_{export}}},\n" for base, version, flag, export in rows)
    return f"static const struct gp_version gp_versions[] = {{\n{body}}};\n"


def known_types(text: str) -> set[str]:
    """Return the names of types that a header of this project declares, besides C's own."""
    text = without_comments(text)
    declared = set(re.findall(r"\}\s*\*?\s*(\w+)\s*;", text))
    declared |= set(re.findall(r"^\s*typedef\s[^;{(]*?\b(\w+)\s*;", text, flags=re.MULTILINE))
    declared |= set(re.findall(r"\btypedef\s[^;{(]*\(\s*\*\s*(\w+)\s*\)", text))
    declared |= set(re.findall(r"^GP_(?:HANDLE|OPAQUE|NUMBER)\((\w+)\)", text, flags=re.MULTILINE))
    return declared | C_WORDS


def prototypes_header(library: Library, api: dict[str, str]) -> str:
    """Return prototypes of all functions whose types the project's own header declares."""
    headers = [HERE / name for name in library.types]
    known = known_types("".join(header.read_text(encoding="utf-8") for header in headers if header.is_file()))
    declared = (name for name, types in api.items() if types != UNKNOWN_TYPES)
    usable = [name for name in declared if set(re.findall(r"\w+", api[name])) <= known]
    return "".join(f"{library.result} {name}({api[name] or 'void'});\n" for name in usable)


def make_tables() -> dict[str, str]:
    """Return the files that the build includes, as file name -> text."""
    cuda, nvml = read_exports(CUDA), read_exports(NVML)
    files = {"versions.h": versions_header(), "index.h": index_header(CUDA, cuda)}
    files["nvml_index.h"] = index_header(NVML, nvml)
    files["cuda_exports.h"], files["nvml_exports.h"] = exports_header(cuda), exports_header(nvml)
    for library, api in ((CUDA, cuda), (NVML, nvml)):
        hooks = hooks_of(library)
        files[f"{library.name}_names.h"] = names_header(library, api)
        files[f"{library.name}_hooks.h"] = hooks_header(library)
        files[f"{library.name}_hooks.c"] = hooks_source(library, api, hooks)
        files[f"{library.name}_jumps.S"] = jumps_source(api, hooks)
        files[f"{library.name}_prototypes.h"] = prototypes_header(library, api)
    return files


def sources_hash(folder: Path = HERE) -> str:
    """Return the SHA-256 over names and contents of the sources: builds with the same hash are equal."""
    digest = hashlib.sha256()
    names = ("*.py", "generated/*.txt", "include/**/*.h", "*/*.[ch]", "fake/*/*.[ch]", "**/*.def")
    for path in sorted({path for name in names for path in folder.glob(name)}):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run one of the commands of the module's docstring."""
    match arguments:
        case ["lists", *folders] if folders:
            write(HERE / "generated", make_lists([Path(folder) for folder in folders]))
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
