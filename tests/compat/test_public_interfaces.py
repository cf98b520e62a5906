"""Commands, HTTP API and client still have everything that an earlier version had.

recorded_interfaces.json was made with an earlier version (see public_interfaces.py). If something must be removed, the
change is described in CHANGELOG.md and added to REMOVED.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from public_interfaces import interfaces

from gpupool.cli.index import known_name

RECORDED = json.loads((Path(__file__).parent / "recorded_interfaces.json").read_text(encoding="utf-8"))
REMOVED = frozenset({"Client.cancel_reservation(booking_id)"})  # now reservation_id; positional calls still work


@pytest.fixture(scope="module")
def present() -> dict[str, Any]:
    return interfaces()


def test_commands_and_options_are_accepted(present: dict[str, Any]) -> None:
    assert removed_options(RECORDED["commands"], present["commands"]) == []


def removed_options(old: dict[str, list[str]], new: dict[str, list[str]]) -> list[str]:
    """Return commands and options that a script for the old version may use and that are gone."""
    wrong = []
    for path, flags in old.items():
        first, _, rest = path.partition(" ")
        now = new.get(f"{known_name(first)} {rest}".strip())
        wrong += [path] if now is None else [f"{path} {flag}" for flag in flags if flag not in now]
    return sorted({*wrong} - REMOVED)


def test_operations_parameters_and_properties_of_the_api_exist(present: dict[str, Any]) -> None:
    assert removed_from_api(RECORDED["api"], present["api"]) == []


def removed_from_api(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Compare each operation. Names of schemas may change; what they describe may not lose anything."""
    comparison = Comparison(old["schemas"], new["schemas"])
    for title, operation in old["operations"].items():
        now = new["operations"].get(title)
        if now is None:
            comparison.wrong.add(title)
            continue
        comparison.wrong |= {f"{title}: {one}" for one in {*operation["parameters"]} - {*now["parameters"]}}
        for part in ("body", "answer"):
            comparison.types(f"{title}: {part}", operation[part], now[part])
    return sorted(comparison.wrong - REMOVED)


class Comparison:
    """Compares schemas from those of operations downwards, each pair once, and collects what is gone."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._old, self._new = old, new
        self._compared: set[tuple[str, str]] = set()
        self.wrong: set[str] = set()

    def types(self, place: str, before: list[str], after: list[str]) -> None:
        """Compare the types of one value; references to schemas are paired in their order."""
        self.wrong |= {f"{place}: {one}" for one in before if "#" not in one and one not in after}
        for form in {one.partition("#")[0] for one in before if "#" in one}:
            names = [[t.partition("#")[2] for t in types if t.startswith(f"{form}#")] for types in (before, after)]
            if len(names[0]) > len(names[1]):
                self.wrong.add(f"{place}: {form}object")
            for pair in {*zip(*names, strict=False)} - self._compared:
                self._compared.add(pair)
                self._properties(*pair)

    def _properties(self, before: str, after: str) -> None:
        for name, types in self._old[before].items():
            if name in self._new[after]:
                self.types(f"{after}.{name}", types, self._new[after][name])
            else:
                self.wrong.add(f"{after}.{name}")


def test_names_methods_and_parameters_of_the_client_exist(present: dict[str, Any]) -> None:
    assert set(RECORDED["names"]) <= set(present["names"])
    assert removed_from_client(RECORDED["client"], present["client"]) == []


def removed_from_client(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return members that are gone, and methods that refuse a call that was accepted."""
    wrong = []
    for kind, members in old.items():
        for member, parameters in members.items():
            if member not in new.get(kind, {}):
                wrong.append(f"{kind}.{member}")
            elif parameters is not None and not accepts(parameters, new[kind][member]):
                wrong.append(f"{kind}.{member}({', '.join(parameters)})")
    return sorted({*wrong} - REMOVED)


def accepts(old: list[str], new: list[str] | None) -> bool:
    """Return whether calls for the old parameters suit the new ones: same order, nothing more is required."""
    if new is None:
        return False
    before, after = ([one.rstrip("=") for one in parameters] for parameters in (old, new))
    positional = before.index("*") if "*" in before else len(before)
    required = {one for one in new if not one.endswith("=") and not one.startswith("*")}
    return set(before) <= set(after) and before[:positional] == after[:positional] and required <= set(old)


# The comparisons themselves: each loss is found.


def test_removed_option_and_command_are_found() -> None:
    old = {"request_gpus": ["--for", "-n"], "token create": ["--user"], "gone": []}
    new = {"request-gpus": ["-n"], "token create": ["--user", "--scope"]}
    assert removed_options(old, new) == ["gone", "request_gpus --for"]


def test_removed_property_is_found_also_below_renamed_schema() -> None:
    def described(name: str, properties: dict[str, list[str]]) -> dict[str, Any]:
        operations = {"GET /v1/x": {"parameters": [], "body": [], "answer": [f"[]#{name}"]}}
        return {"operations": operations, "schemas": {name: properties}}

    old = described("Old", {"id": ["string"], "state": ["=idle", "=queued"], "next": ["#Old", "null"]})
    new = described("New", {"id": ["integer"], "state": ["=idle"], "next": ["#New", "null"], "more": ["any"]})
    assert removed_from_api(old, new) == ["New.id: string", "New.state: =queued"]
    assert removed_from_api(old, described("New", {"id": ["string"]})) == ["New.next", "New.state"]
    assert removed_from_api(old, {"operations": {}, "schemas": {}}) == ["GET /v1/x"]


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (["ref"], ["ref", "force="], True),
        (["ref"], ["ref", "force"], False),
        (["ref", "force="], ["ref"], False),
        (["ref", "force="], ["force=", "ref"], False),
        (["ref="], ["ref"], False),
        (["ref", "*", "a=", "b="], ["ref", "*", "b=", "a="], True),
        (["ref", "a="], ["ref", "*", "a="], False),
        (["command", "**options"], ["command", "**options"], True),
    ],
)
def test_calls_that_were_accepted(old: list[str], new: list[str], accepted: bool) -> None:
    assert accepts(old, new) == accepted
