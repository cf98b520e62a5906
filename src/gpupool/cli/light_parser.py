"""Read the arguments of a command without Typer. Anything unusual is left to the Typer program.

It reads what Typer reads in the same way; help, usage errors, and types of parameters that it does not know raise
``NeedsFullParser``, so that there is one source of every message.
"""

from __future__ import annotations

from gpupool.cli.lazy_typer import CommandContext, Declared
from gpupool.cli.request.options import NeedsFullParser
from gpupool.specs.job_options import OptionKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpupool.cli.lazy_typer import Command

PLAIN_SETTINGS = frozenset({"help", "metavar", "autocompletion", "min", "max", "show_default", "rich_help_panel"})
REQUIRED = object()
UNION: Any = type(int | None)
TYPES: dict[int, tuple[Any, bool]] = {  # type and whether it is repeatable
    OptionKind.FLAG: (bool, False),
    OptionKind.TEXT: (str, False),
    OptionKind.COUNT: (int, False),
    OptionKind.NUMBER: (float, False),
    OptionKind.REPEATED: (str, True),
}


class Parameter:
    """One parameter of a command: its spellings (none for an argument), type, range and default."""

    __slots__ = ("default", "flags", "kind", "largest", "name", "off", "repeated", "smallest")

    def __init__(self, name: str, kind: Any, flags: tuple[str, ...], default: Any, *, repeated: bool = False) -> None:
        self.name = name
        self.kind = kind
        self.flags = flags
        self.off: tuple[str, ...] = ()
        self.default = default
        self.repeated = repeated
        self.smallest: float | None = None
        self.largest: float | None = None

    def read(self, text: str) -> Any:
        """Return a value. Raises ``NeedsFullParser`` for text that Typer refuses."""
        try:
            value = self.kind(text)
        except ValueError:
            raise NeedsFullParser from None
        if (self.smallest is not None and value < self.smallest) or (self.largest is not None and value > self.largest):
            raise NeedsFullParser
        return value


def parse_command(command: Command, argv: list[str], obj: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the command's function. Raises ``NeedsFullParser``."""
    settings = command.settings.get("context_settings") or {}
    if settings.keys() - {"allow_interspersed_args"} or command.settings.keys() - {"context_settings"}:
        raise NeedsFullParser
    values: dict[str, Any] = {}
    parameters = parameters_of(command.function, values, obj)
    words = _read_options(parameters, argv, values, mixed=settings.get("allow_interspersed_args", True))
    _read_arguments([p for p in parameters if not p.flags], words, values)
    for parameter in parameters:
        if parameter.name not in values:
            if parameter.default is REQUIRED:
                raise NeedsFullParser
            values[parameter.name] = parameter.default
    return values


def parameters_of(function: Callable[..., Any], values: dict[str, Any], obj: dict[str, Any]) -> list[Parameter]:
    """Return the parameters of a function; its context is put into ``values``."""
    own: Any = getattr(function, "own", function)
    code, defaults = own.__code__, list(own.__defaults__ or ())
    names = code.co_varnames[: code.co_argcount]
    if code.co_kwonlyargcount or code.co_posonlyargcount:
        raise NeedsFullParser
    first_default = len(names) - len(defaults)
    found = []
    for place, name in enumerate(names):
        text = own.__annotations__[name]
        annotation = eval(text, own.__globals__) if isinstance(text, str) else text  # noqa: S307 - of our own source
        if annotation is CommandContext:
            values[name] = CommandContext(obj)
            continue
        default = defaults[place - first_default] if place >= first_default else REQUIRED
        found.append(_parameter(name, annotation, default))
    for option in getattr(function, "options", ()):
        kind, repeated = TYPES[option.kind]
        parameter = Parameter(option.name, kind, option.flags, None, repeated=repeated)
        parameter.off = option.off
        found.append(parameter)
    return found


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    metadata: Any = getattr(annotation, "__metadata__", ())
    if len(metadata) != 1 or not isinstance(metadata[0], Declared):
        raise NeedsFullParser
    declared: Declared = metadata[0]
    kind, repeated = _kind(annotation.__origin__)
    if declared.settings.keys() - PLAIN_SETTINGS or (declared.is_option and not declared.flags):
        raise NeedsFullParser
    on: list[str] = []
    off: list[str] = []
    for flag in declared.flags:
        yes, _, no = flag.partition("/")
        on.append(yes)
        off += [no] if no else []
    parameter = Parameter(name, kind, tuple(on), default, repeated=repeated)
    parameter.off = tuple(off)
    parameter.smallest, parameter.largest = declared.settings.get("min"), declared.settings.get("max")
    return parameter


def _kind(annotation: Any) -> tuple[Any, bool]:
    """Return the type of a parameter's values, and whether it is repeatable."""
    if isinstance(annotation, UNION):
        (annotation,) = [one for one in annotation.__args__ if one is not type(None)]
    repeated = getattr(annotation, "__origin__", None) is list
    kind = annotation.__args__[0] if repeated else annotation
    if kind in {str, int, float, bool} or _is_text_enum(kind):
        return kind, repeated
    raise NeedsFullParser


def _is_text_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, str) and hasattr(kind, "__members__")


def _read_options(parameters: list[Parameter], argv: list[str], values: dict[str, Any], *, mixed: bool) -> list[str]:
    """Put the options into ``values`` and return the other words."""
    known = {flag: (parameter, True) for parameter in parameters for flag in parameter.flags}
    known |= {flag: (parameter, False) for parameter in parameters for flag in parameter.off}
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return words + rest
        if not word.startswith("-") or word == "-":
            words.append(word)
            if not mixed:
                return words + rest
            continue
        flag, equals, attached = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if flag not in known:
            raise NeedsFullParser
        parameter, on = known[flag]
        if parameter.kind is bool:
            if equals:
                raise NeedsFullParser
            values[parameter.name] = on
            if attached:  # several letters: -af
                rest.insert(0, f"-{attached}")
            continue
        text = attached if equals or attached else _next_word(rest)
        value = parameter.read(text)
        if parameter.repeated:
            values.setdefault(parameter.name, []).append(value)
        else:
            values[parameter.name] = value
    return words


def _next_word(rest: list[str]) -> str:
    if not rest or rest[0].startswith("-"):  # Typer knows whether it is a value
        raise NeedsFullParser
    return rest.pop(0)


def _read_arguments(parameters: list[Parameter], words: list[str], values: dict[str, Any]) -> None:
    for place, parameter in enumerate(parameters):
        if parameter.repeated:
            if place != len(parameters) - 1:
                raise NeedsFullParser
            if words:
                values[parameter.name] = [parameter.read(word) for word in words]
            return
        if words:
            values[parameter.name] = parameter.read(words[0])
            words = words[1:]
    if words:
        raise NeedsFullParser
