"""Templates: files with options of ``submit``, in the user's folder or the machine's."""

# pathlib takes longer to import than this module takes to run:
# ruff: noqa: PTH112, PTH118, PTH123, PTH208

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from gpupool.cli.settings import config_dir
from gpupool.domain.errors import ErrorCode, GpupoolError

if TYPE_CHECKING:
    from collections.abc import Iterator

Values = dict[str, Any]
MACHINE_FOLDER = "/etc/gpupool/templates"
MAX_BYTES = 1 << 16
AMOUNT = frozenset({"num_gpus", "gpu", "partial", "gpu_memory"})
LISTS = ("env", "label", "after")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def folders() -> tuple[str, ...]:
    """Return the folders with templates; the first has precedence."""
    return f"{config_dir()}/templates", MACHINE_FOLDER


def all_templates() -> Iterator[tuple[str, str]]:
    """Yield each template's name and path."""
    seen = set()
    for folder in folders():
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        for name in names:
            if _NAME.fullmatch(name) and name not in seen:
                seen.add(name)
                yield name, os.path.join(folder, name)


def with_template(values: Values) -> Values:
    """Return the values over those of the template that they name. Raises ``GpupoolError``."""
    if "template" not in values:
        return values
    given = {name: value for name, value in values.items() if name != "template"}
    return merge_values(read_template(values["template"]), given)


def merge_values(found: Values, given: Values) -> Values:
    """Return ``given`` over ``found``: one amount of GPUs replaces another; variables and labels are added."""
    found = {name: value for name, value in found.items() if name not in AMOUNT or not AMOUNT & given.keys()}
    return found | given | {name: [*found.get(name, []), *given[name]] for name in LISTS if given.get(name)}


def read_template(name: str) -> Values:
    """Return the values of a template's options. Raises ``GpupoolError``: NOT_FOUND, INVALID_FILE."""
    path = dict(all_templates()).get(name)
    if path is None:
        raise GpupoolError(
            ErrorCode.NOT_FOUND,
            f"There is no template '{name[:80]}'.",
            f"See 'gpupool list templates', or write options of submit into {folders()[0]}/NAME.",
        )
    try:
        with open(path, encoding="utf-8") as file:
            words = shlex.split(file.read(MAX_BYTES), comments=True)
    except (OSError, ValueError) as error:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{path} cannot be read: {error}.", "Correct the file.") from error
    return read_options(words, f"in {path}")


def read_options(words: list[str], place: str) -> Values:
    """Return the values of options of ``submit`` in a file. Raises ``GpupoolError(INVALID_REQUEST)``."""
    from gpupool.cli.request import options
    from gpupool.cli.request.submit_options import SUBMIT

    try:
        own, rest = options.parse(SUBMIT, words)
    except options.NeedsFullParser:
        own, rest = {}, [" ".join(words)]
    if rest or "template" in own:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"'{(rest or ['--template'])[0][:80]}' {place} is not an option of submit.",
            "See 'gpupool submit --help'.",
        )
    return own
