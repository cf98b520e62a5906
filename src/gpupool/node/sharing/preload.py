"""Libraries for ``LD_PRELOAD``: paths that the loader accepts and files that the program's user can read.

The loader splits ``LD_PRELOAD`` at blanks and colons, without a way to quote them. A file with such a path is preloaded
through a link in the pool's own folder. The loader skips unreadable files with a warning, and the program would run
without its limits; so permissions are checked here. Files that are closed to other users (an installation in /root) are
copied to the pool's folder on the disk. The link to the copy is in the run folder, which containers can see; the copy
is not, because many machines mount /run with noexec.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.node.host.native import Product
from gpupool.node.ports import SharingHost

VARIABLE = "LD_PRELOAD"
_SPLIT = re.compile(r"[\s:]")
LINKS = "native"


@dataclass(frozen=True, slots=True)
class Libraries:
    """Paths of libraries to preload, in order."""

    names: tuple[str, ...]

    def preload(self, own: str) -> str:
        """Return the variable's value, with the program's own libraries last."""
        return ":".join((*self.names, own) if own else self.names)


def libraries(host: SharingHost, products: Sequence[Product]) -> Libraries | str:
    """Return the libraries with paths that the loader accepts; or the reason why that is not possible."""
    if _SPLIT.search(str(host.folder)):
        return f"The pool's folder {host.folder} has a blank or a colon in its name, which LD_PRELOAD does not support."
    names = []
    for product in products:
        path = product.path
        if host.shared and (closed := _closed_to_others(path)):
            path = _copied(host, product)
            if _closed_to_others(path) or os.statvfs(path).f_flag & os.ST_NOEXEC:
                return f"{closed} is closed to other users: install gpupool where all can read {product.path}."
        if path != product.path or _SPLIT.search(str(path)):
            path = _linked(host, product, path)
        names.append(str(path))
    return Libraries(tuple(names))


def _linked(host: SharingHost, product: Product, path: Path) -> Path:
    """Create a link to the file, reachable like the pool's folder. Raises OSError."""
    link = host.folder / LINKS / product
    make_passable(link.parent, shared=host.shared)
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(path)
    new.rename(link)
    return link


def _copied(host: SharingHost, product: Product) -> Path:
    """Return a copy of the file that all users can read. Raises OSError.

    A copy is replaced as a whole after an upgrade, because running programs have the old file mapped.
    """
    copy = host.store / LINKS / product
    if copy.is_file() and filecmp.cmp(copy, product.path, shallow=False):
        return copy
    make_passable(copy.parent, shared=True)
    new = copy.with_name(f".{copy.name}.{os.getpid()}")
    shutil.copyfile(product.path, new)
    new.chmod(0o755)
    new.replace(copy)
    return copy


def make_passable(folder: Path, *, shared: bool) -> None:
    """Create a folder; if ``shared``, other users can pass through it and its parent. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder, folder.parent):
        each.chmod(0o711 if shared else 0o700)


def _closed_to_others(path: Path) -> Path | None:
    """Return the first of the file and its parent folders that others may not read or pass."""
    real = path.resolve()
    if not real.stat().st_mode & stat.S_IROTH:
        return real
    return next((folder for folder in reversed(real.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)
