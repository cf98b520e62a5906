"""Declarations of commands in Typer's words, kept without Typer until they are needed.

Typer and pydantic take four times as long to import as an everyday command takes to run. Command modules import this
module in place of Typer. ``light_app`` runs a command from these declarations; ``app`` makes the Typer program from
them for help, usage errors and completion.
"""

# ruff: noqa: N802 - the names are Typer's

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


class BadParameter(Exception):  # noqa: N818 - as in Typer
    """The user gave arguments that contradict each other, or left one out. The message is shown as a usage error."""


class CommandContext:
    """The context of a command: ``obj`` has the words after ``--``."""

    def __init__(self, obj: dict[str, Any], invoked_subcommand: str | None = None) -> None:
        self.obj = obj
        self.invoked_subcommand = invoked_subcommand


class Declared:
    """An option or argument: its spellings, and the settings of ``typer.Option`` or ``typer.Argument``."""

    __slots__ = ("flags", "is_option", "settings")

    def __init__(self, flags: tuple[str, ...], settings: dict[str, Any], *, is_option: bool) -> None:
        self.flags = flags
        self.settings = settings
        self.is_option = is_option


def Option(*flags: str, **settings: Any) -> Declared:
    """Declare an option; the arguments are those of ``typer.Option`` without its default."""
    return Declared(flags, settings, is_option=True)


def Argument(**settings: Any) -> Declared:
    """Declare an argument; the arguments are those of ``typer.Argument`` without its default."""
    return Declared((), settings, is_option=False)


class Command:
    """A function that is a command, and the settings of ``Typer.command``. ``text`` and ``examples`` make its help."""

    __slots__ = ("examples", "function", "name", "settings", "text")

    def __init__(
        self, name: str, function: Callable[..., Any], text: str, examples: tuple[str, ...], settings: dict[str, Any]
    ) -> None:
        self.name = name
        self.function = function
        self.text = text
        self.examples = examples
        self.settings = settings


class Typer:
    """A program or a group: its commands and groups by name. ``settings`` are those of ``typer.Typer``."""

    def __init__(self, text: str = "", examples: tuple[str, ...] = (), **settings: Any) -> None:
        self.text = text
        self.examples = examples
        self.settings = settings
        self.commands: dict[str, Command] = {}
        self.groups: dict[str, Typer] = {}
        self.own: Command | None = None  # what the group itself does

    def command(
        self, name: str | None = None, text: str | None = None, examples: tuple[str, ...] = (), **settings: Any
    ) -> Callable[[F], F]:
        """Declare a command; its name and help are those of the function by default."""

        def declare(function: F) -> F:
            called = name or function.__name__.replace("_", "-")
            about = function.__doc__ or "" if text is None else text
            self.commands[called] = Command(called, function, about, examples, settings)
            return function

        return declare

    def callback(self, text: str = "", examples: tuple[str, ...] = (), **settings: Any) -> Callable[[F], F]:
        """Declare the function of the group itself."""

        def declare(function: F) -> F:
            self.own = Command("", function, text or function.__doc__ or "", examples, settings)
            return function

        return declare

    def add_typer(self, group: Typer, name: str) -> None:
        """Add a group."""
        self.groups[name] = group
