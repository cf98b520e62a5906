"""A git repository that is cloned into the working folder before a program starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import normpath
from urllib.parse import urlsplit

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_LENGTH = 2000
SCHEMES = frozenset({"https", "http", "ssh", "git", "file"})
_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!/?/)[^\s]+")  # git@host:team/repository.git
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+@-]{0,199}")
_PATH = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._/ -]{0,199}")
_KEYS = {"repository": "url", "source": "url", "rev": "revision", "revision": "revision", "branch": "revision"}
_KEYS |= {"path": "path", "target": "path"}
_REFUSED = {"password", "username", "secret", "name"}


@dataclass(frozen=True, slots=True)
class GitSource:
    """A repository, what to check out (empty: its default branch), and the folder in the working folder."""

    url: str
    path: str
    revision: str = ""


def parse_git_source(text: str) -> GitSource:
    """Parse ``URL`` or ``repository=URL,rev=REV,path=DIR``. Raises ``GpupoolError(INVALID_REQUEST)``."""
    if len(text) > MAX_LENGTH or not text.isprintable():
        raise _invalid("The repository is not a printable text of at most 2000 characters.")
    given = {"url": text}
    if text.partition("=")[0] in _KEYS.keys() | _REFUSED:
        given = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            if key in {"password", "username", "secret"}:
                raise _invalid(
                    f"Credentials such as {key} do not belong in a command.",
                    "Set the variables GITSYNC_USERNAME and GITSYNC_PASSWORD, or use a key of ssh.",
                )
            if key != "name" and key not in _KEYS:
                raise _invalid(f"'{key[:40]}' is not a part of a repository.")
            given |= {_KEYS[key]: value} if key != "name" else {}
    url = given.get("url", "")
    _check_url(url)
    revision, path = given.get("revision", ""), normpath(given.get("path") or _name_of(url))
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise _invalid(f"'{revision[:80]}' is not a branch, tag or commit.")
    if not _PATH.fullmatch(path) or path == "." or ".." in path.split("/") or ".git" in path.split("/"):
        raise _invalid(f"'{path[:80]}' is not a folder inside the working folder.", "Write path=NAME.")
    return GitSource(url, path, revision)


def _check_url(url: str) -> None:
    if any(character in url for character in " ,\\"):
        raise _invalid(f"'{url[:80]}' is not the URL of a repository.")
    if "://" not in url:
        if not _SCP.fullmatch(url):
            raise _invalid(f"'{url[:80]}' is not the URL of a repository.")
        return
    try:
        parts = urlsplit(url)
        password, user = parts.password, parts.username
    except ValueError:
        raise _invalid(f"'{url[:80]}' is not the URL of a repository.") from None
    if parts.scheme not in SCHEMES or not (parts.hostname if parts.scheme != "file" else parts.path):
        raise _invalid(f"'{url[:80]}' is not the URL of a repository.")
    if (parts.hostname or "h").startswith("-"):
        raise _invalid(f"'{url[:80]}' is not the URL of a repository.")
    if password is not None or (user and parts.scheme != "ssh"):
        raise _invalid(
            "The URL contains credentials, which others could read.",
            "Set the variables GITSYNC_USERNAME and GITSYNC_PASSWORD, or use a key of ssh.",
        )


def _name_of(url: str) -> str:
    """Return the name of a repository: the last part of its URL."""
    return re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")


def _invalid(sentence: str, hint: str = "Write a URL, or repository=URL,rev=BRANCH,path=FOLDER.") -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
