"""Completion of commands, flags and values in bash, zsh and fish.

The scripts are static text made from the commands' flags: completing starts no Python.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from anchor_interp.cli.flags import HELP, Flag, flags_of
from anchor_interp.runs.presets import RUNS
from anchor_interp.tasks.anchor import TASKS

Shell = Literal["bash", "zsh", "fish"]


_KNOWN = {
    "preset": tuple(RUNS),
    "task": tuple(TASKS),
    "device": ("auto", "cpu", "cuda", "mps"),
}
"""Values of flags whose type does not list them."""


_BASH = """\
# bash completion of anchor-interp; for example: source <(anchor-interp completion bash)
_anchor_interp() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} words=
  COMPREPLY=()
  if [ "$cur" = = ]; then cur=
  elif [ "$prev" = = ]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
  else
    case "${{COMP_WORDS[1]}} $prev" in
{values}
      *)
        case "${{COMP_WORDS[1]}} $cur" in
{flags}
        esac ;;
    esac
  fi
  [ -n "$words" ] && COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _anchor_interp anchor-interp
"""


_ZSH = """\
#compdef anchor-interp
# zsh completion of anchor-interp; for example: source <(anchor-interp completion zsh)
_anchor_interp() {{
  local -a commands
  commands=({commands} --help --version)
  if (( CURRENT == 2 )); then _describe command commands; return; fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{flags}
  esac
}}
if [ "$funcstack[1]" = _anchor_interp ]; then _anchor_interp "$@"
else compdef _anchor_interp anchor-interp
fi
"""


def completion(shell: Shell, commands: Mapping[str, type]) -> str:
    """The script that teaches a shell to complete this program's commands."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


def _choices(flag: Flag) -> tuple[str, ...]:
    return flag.choices or _KNOWN.get(flag.name, ())


def _named(command: type) -> Iterator[Flag]:
    return (flag for flag in flags_of(command) if not flag.positional)


def _places(command: type) -> Iterator[Flag]:
    return (flag for flag in flags_of(command) if flag.positional)


def _about(command: type) -> str:
    """The first sentence of what a command says about itself, without a shell's characters."""
    first = (command.__doc__ or "").split("\n")[0].split(";")[0]
    return first.rstrip(".").replace("'", "").replace(":", ",")


def _bash(commands: Mapping[str, type]) -> str:
    values, flags = [], []
    for name, command in commands.items():
        for flag in _named(command):
            if flag.kind is bool:
                continue
            words = " ".join(_choices(flag))
            nothing = "compopt +o default 2> /dev/null"
            action = "return" if flag.kind is Path else f'words="{words}"' if words else nothing
            values.append(f'      "{name} {flag.spellings[0]}") {action} ;;')
        spelled = " ".join(text for flag in _named(command) for text in flag.spellings)
        flags.append(f'          "{name} -"*) words="{spelled} {HELP[1]}" ;;')
        for place in _places(command):
            words = " ".join(_choices(place))
            flags.append(f'          "{name} "*) words="{words}" ;;')
        if not any(_places(command)):
            flags.append(f'          "{name} "*) words="{spelled} {HELP[1]}" ;;')
    names = " ".join((*commands, HELP[1], "--version"))
    return _BASH.format(commands=names, values="\n".join(values), flags="\n".join(flags))


def _zsh(commands: Mapping[str, type]) -> str:
    def value(flag: Flag) -> str:
        if flag.kind is Path:
            return f":{flag.name}:_files"
        return f":{flag.name}:({' '.join(_choices(flag))})"

    flags = []
    for name, command in commands.items():
        places = [f"'{'*' if flag.many else ''}{value(flag)}'" for flag in _places(command)]
        named = [
            f"'{text}{'' if flag.kind is bool else '=' + value(flag)}'"
            for flag in _named(command)
            for text in flag.spellings
        ]
        parts = " ".join([*named, f"'{HELP[1]}'", *places])
        flags.append(f"    {name}) _arguments {parts} ;;")
    names = " ".join(f"'{name}:{_about(command)}'" for name, command in commands.items())
    return _ZSH.format(commands=names, flags="\n".join(flags))


def _fish(commands: Mapping[str, type]) -> str:
    lines = [
        "# fish completion of anchor-interp; for example: anchor-interp completion fish | source",
        "complete -c anchor-interp -f",
        "complete -c anchor-interp -l help",
        "complete -c anchor-interp -n __fish_use_subcommand -l version",
    ]
    for name, command in commands.items():
        lines.append(
            f"complete -c anchor-interp -n __fish_use_subcommand -a {name} -d '{_about(command)}'"
        )
        start = f"complete -c anchor-interp -n '__fish_seen_subcommand_from {name}'"
        for flag in _named(command):
            choices = f"-x -a '{' '.join(_choices(flag))}'"
            takes = "" if flag.kind is bool else " -r -F" if flag.kind is Path else f" {choices}"
            lines += [f"{start} -l {text[2:]}{takes}" for text in flag.spellings]
        for place in _places(command):
            choices = f"-a '{' '.join(_choices(place))}'" if _choices(place) else "-F"
            lines.append(f"{start} {choices}")
    return "\n".join(lines) + "\n"
