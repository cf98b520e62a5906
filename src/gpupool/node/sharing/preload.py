"""Libraries for ``LD_PRELOAD``: names that the loader can take and files that the program's user can read.

The loader splits ``LD_PRELOAD`` at blanks and colons, and there is no way to quote them; a file with such a name is
reached through a link in the pool's own folder. What a user cannot read the loader skips with a warning, and the
program would run without its limits: that is found out here, once, and not there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.node.native import Product
from gpupool.node.ports import SharingHost

VARIABLE = "LD_PRELOAD"
_SPLIT = re.compile(r"[\s:]")
_LINKS = "native"


@dataclass(frozen=True, slots=True)
class Libraries:
    """Names of libraries to preload, in order."""

    names: tuple[str, ...]

    def preload(self, own: str) -> str:
        """The variable's value, in front of what the program's own environment says."""
        return ":".join((*self.names, own) if own else self.names)


def libraries(host: SharingHost, products: Sequence[Product]) -> Libraries | str:
    """The libraries by names that the loader takes; or why that cannot be, in a sentence."""
    if _SPLIT.search(str(host.folder)):
        return f"The pool's folder {host.folder} has a blank or a colon in its name, which LD_PRELOAD cannot carry."
    names = []
    for product in products:
        path = product.path
        if host.shared and (closed := _closed_to_others(path)):
            return f"{closed} is closed to other users: install gpupool where everybody can read {path}."
        names.append(str(_linked(host, product) if _SPLIT.search(str(path)) else path))
    return Libraries(tuple(names))


def _linked(host: SharingHost, product: Product) -> Path:
    """A link to the file; the folder is passable as the pool's own is. Raises OSError."""
    link = host.folder / _LINKS / product
    link.parent.mkdir(parents=True, exist_ok=True)
    for folder in (link.parent, link.parent.parent):
        folder.chmod(0o711 if host.shared else 0o700)
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(product.path)
    new.rename(link)
    return link


def _closed_to_others(path: Path) -> Path | None:
    """The first of the file and the folders above it that others may not read or pass."""
    real = path.resolve()
    if not real.stat().st_mode & stat.S_IROTH:
        return real
    return next((folder for folder in reversed(real.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)
