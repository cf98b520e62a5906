"""``completion``: shell scripts that complete commands, options and names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import command
from gpupool.cli.output import show


class Shell(StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS = {
    Shell.BASH: """\
_gpupool_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _GPUPOOL_COMPLETE=complete_bash $1 ) )
    return 0
}
complete -o default -F _gpupool_completion gpupool""",
    Shell.ZSH: """\
#compdef gpupool
_gpupool_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _GPUPOOL_COMPLETE=complete_zsh gpupool)
}
compdef _gpupool_completion gpupool""",
    Shell.FISH: """\
complete --command gpupool --no-files --arguments "(env _GPUPOOL_COMPLETE=complete_fish \
_TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp) gpupool)" --condition \
"env _GPUPOOL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args \
_TYPER_COMPLETE_ARGS=(commandline -cp) gpupool\"""",
}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        'eval "$(gpupool completion bash)"',
        "gpupool completion zsh > ~/.zfunc/_gpupool",
        "gpupool completion fish > ~/.config/fish/completions/gpupool.fish",
    )(completion)


def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a script with which a shell completes commands, options and names of workloads."""
    show([SCRIPTS[shell]])
