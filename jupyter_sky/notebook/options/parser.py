"""Parses a line by a table of arguments; errors are sentences that say what to type instead."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import similar_names, without_secrets
from jupyter_sky.notebook.options.option_type import InvalidValue, OptionType

_DASHES = ("-", "\N{EN DASH}", "\N{EM DASH}")  # an editor may have made one dash of two hyphens
_SHELLS = ("bash", "sh", "zsh", "shell")

_ELSEWHERE = {
    "cloud": "--provider",
    "d": "--background",
    "detach": "--background",
    "detach-run": "--background",
    "gpus-per-node": "--gpu",
    "i": "--idle-timeout",
    "idle-minutes-to-autostop": "--idle-timeout",
    "infra": "--provider",
    "ntasks-per-node": "--procs-per-node",
    "y": "--max-price",
    "yes": "--max-price",
}
"""What options of SkyPilot and Slurm, which users may type by habit, are called here."""

_REQUIREMENTS = re.compile(r"(?:-r|--requirements?)=?(.*)")
"""How pip and uv are told of a file of packages."""

_FIELDS = {"--in": "in_names", "--volume": "volumes"}
"""Where the name alone will not do: `in` is a keyword, and a setting has several volumes."""


@dataclass(frozen=True)
class Argument:
    """One option, or a positional argument.

    Attributes
    ----------
    names
        All spellings, the preferred one first; positional arguments have no hyphens.
    metavar
        The placeholder for its value in the help.
    type
        The type of its value; None for a switch.
    example
        A value of that type.
    help
        What it is for.
    required
        Whether a line without it is refused.
    is_internal
        Whether only our own programs type it, so that users are not shown it.
    """

    names: tuple[str, ...]
    metavar: str
    type: OptionType | None
    example: str
    help: str
    required: bool = False
    is_internal: bool = False

    @property
    def name(self) -> str:
        """The preferred spelling."""
        return self.names[0]

    @property
    def is_option(self) -> bool:
        """Whether it is not positional."""
        return self.name.startswith("-")

    @cached_property
    def field(self) -> str:
        """The attribute that holds its value."""
        return _FIELDS.get(self.name) or self.name.lstrip("-").replace("-", "_")


class HelpRequested(Exception):
    """``-h`` was typed; `text` is what to show."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Parser(argparse.ArgumentParser):
    """Assigns words to arguments with argparse, and converts them by the arguments' types.

    Parameters
    ----------
    prog
        The beginning of the line, like ``%sky logs``.
    help
        What it does.
    arguments
        The possible arguments.

    Attributes
    ----------
    beyond
        Advice about words that are meant for something else; empty if there is none.
    """

    beyond = ""

    def __init__(self, prog: str, help: str, arguments: Sequence[Argument]) -> None:
        super().__init__(
            prog,
            description=f"{help[0].upper()}{help[1:]}.",
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32),
        )
        self.arguments = arguments
        self.by_name = {name: each for each in arguments for name in each.names}
        positional = [each for each in arguments if not each.is_option]
        options = ["[options]"] if len(positional) < len(arguments) else []
        words = (each.metavar if each.required else f"[{each.metavar}]" for each in positional)
        self.usage = " ".join(["%(prog)s", *words, *options])
        # Of several arguments without a name, argparse takes none behind an option otherwise.
        has_several = len(positional) > 1
        self._parse = self.parse_known_intermixed_args if has_several else self.parse_known_args
        for each in arguments:
            self._declare(each, greedy=not positional)

    def _declare(self, argument: Argument, *, greedy: bool) -> None:
        metavar = argument.metavar
        help = argparse.SUPPRESS if argument.is_internal else argument.help
        if argument.type is None:
            self.add_argument(*argument.names, dest=argument.field, action="store_true", help=help)
        elif argument.is_option:
            self.add_argument(
                *argument.names,
                dest=argument.field,
                action="extend",
                # With positional arguments, only commas can separate values.
                nargs="+" if argument.type.many and greedy else 1,
                metavar=metavar,
                help=help,
            )
        else:
            nargs = "*" if argument.type.many else "?"
            self.add_argument(argument.name, nargs=nargs, metavar=metavar, help=help)

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of the arguments that were given, by field.

        Raises
        ------
        UsageError
            A word cannot be used; the sentence says what to type instead.
        HelpRequested
            One of the words is ``-h``.
        """
        if "-h" in words or "--help" in words:
            raise HelpRequested(self.format_help())
        try:
            found, rest = self._parse(self._joined(words))
        except argparse.ArgumentError as error:
            raise UsageError(self._without_value(error, words)) from None
        if rest:
            wrong = self._unexpected(rest[0], words)
            raise UsageError(f"{wrong[:-1]} ({self.beyond}){wrong[-1]}" if self.beyond else wrong)
        values = {
            each.field: self._convert(each, vars(found)[each.field], words)
            for each in self.arguments
        }
        return {field: value for field, value in values.items() if value is not None}

    def _joined(self, words: Sequence[str]) -> list[str]:
        """Join options with values that begin with hyphens, which argparse would take for options.

        A negative number is joined, too, so that the error is about the value. Other words with a
        hyphen are options: where a value is missing, argparse of Python 3.13.5 takes them for it.
        """
        joined: list[str] = []
        for word in words:
            before = self._option(joined[-1]) if joined else None
            takes = before.type if before else None
            if takes and (takes.begins_with_hyphens or re.match(r"-\.?\d", word)):
                joined[-1] += f"={word}"
            elif takes and before and re.match(r"-\S+$", word):
                raise UsageError(self._takes(before, "no value is given", words))
            else:
                joined.append(word)
        return joined

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError; argparse would end the process."""
        raise UsageError(message)

    def _convert(self, argument: Argument, given: Any, words: Sequence[str]) -> Any:
        if argument.type is None:
            return given or None
        texts = argument.type.split([given] if isinstance(given, str) else given or [])
        if not texts and not given and not argument.required:
            return None
        if not texts:
            raise UsageError(self._takes(argument, "none is given", words))
        if len(texts) > 1 and not argument.type.many:
            name = _as_typed(argument, words)
            raise UsageError(f"{name} is given {len(texts)} times: keep one of them.")
        try:
            return argument.type.convert(texts)
        except InvalidValue as wrong:
            text = without_secrets(str(wrong))
            raise UsageError(self._takes(argument, f'"{text}" is not one', words)) from None

    def _takes(self, argument: Argument, but: str, words: Sequence[str]) -> str:
        name = _as_typed(argument, words) if argument.is_option else self.prog
        takes = argument.type.description if argument.type else "no value"
        return f"{name} takes {takes}, as in `{name} {argument.example}`; {but}."

    def _without_value(self, error: argparse.ArgumentError, words: Sequence[str]) -> str:
        argument = self.by_name[(error.argument_name or "").split("/")[0]]
        if argument.type is None:
            name = _as_typed(argument, words)
            typed = next((each for each in words if each.startswith(f"{name}=")), "")
            instead = self._taken_by(argument, typed.partition("=")[2])
            return f"{name} takes no value: type it alone{instead}."
        return self._takes(argument, "no value is given", words)

    def _unexpected(self, word: str, words: Sequence[str]) -> str:
        """Return an error message for a word that no argument accepts."""
        if "packages" in self.by_name and (asked := _REQUIREMENTS.fullmatch(word)):
            after = words[words.index(word) + 1 :]
            file = asked[1] or next(iter(after), "") or "FILE"
            line = shlex.join(["%%sky", "--env", file])
            return f"{self.prog} takes packages: a cell with `{line}` installs those of a file."
        if word.startswith(_DASHES):
            name = word.partition("=")[0].lstrip("".join(_DASHES))
            similar = _ELSEWHERE.get(name.casefold())
            if similar not in self.by_name:
                similar = self._similar_option(name, cutoff=0.65)
            instead = f"did you mean `{similar}`?" if similar else f"`{self._help}` lists them."
            return f"{word} is not an option of {self.prog}: {instead}"
        before = [each.partition("=")[0] for each in words[: words.index(word)]]
        options = [(each, option) for each in before if (option := self._option(each))]
        if options:
            name, option = options[-1]
            instead = self._taken_by(option, word)
            return f'{name} takes {_how_many(option, name)}: leave out "{word}"{instead}.'
        if word.isdecimal() and "--nodes" in self.by_name:
            return f'"{word}" belongs to no option of {self.prog}: did you mean `--nodes {word}`?'
        if word in _SHELLS and "--sh" in self.by_name:
            return f'{self.prog} does not take "{word}": type `--sh` for a shell script.'
        name, equals, value = word.partition("=")
        if similar := self._similar_option(name, cutoff=0.9):
            line = f"{similar}{equals}{value}"
            return f'"{word}" is an option without its hyphens: type `{line}`.'
        return f'{self.prog} does not take "{word}": `{self._help}` shows what it takes.'

    def _taken_by(self, switch: Argument, value: str) -> str:
        """Return advice on which option takes a value that was typed behind a switch, if any."""
        ending = switch.name.removeprefix("-")  # as `--aws-profile` has that of `--profile`
        for each in self.arguments:
            if value and switch.type is None and each.type and each.name.endswith(ending):
                meaning = each.help.partition(" (")[0]
                return f", or type `{each.name} {shlex.quote(value)}` ({meaning})"
        return ""

    def _option(self, word: str) -> Argument | None:
        """Return the option that a word spells; a value may be as the name of a positional one."""
        argument = self.by_name.get(word)
        return argument if argument and argument.is_option else None

    def _similar_option(self, word: str, cutoff: float) -> str | None:
        shown = [name for name, each in self.by_name.items() if not each.is_internal]
        names = [name[2:] for name in shown if name.startswith("--")]
        similar = similar_names(word, names, cutoff=cutoff)
        return f"--{similar[0]}" if similar else None

    @property
    def _help(self) -> str:
        # A cell magic needs a cell below it even for its help; the line magic does not.
        return "%sky -h" if self.prog == "%%sky" else f"{self.prog} -h"


def _as_typed(argument: Argument, words: Sequence[str]) -> str:
    """Return the spelling of an option that a line has; the preferred one if it has none."""
    typed = (word.partition("=")[0] for word in words)
    return next((name for name in typed if name in argument.names), argument.name)


def _how_many(option: Argument, name: str) -> str:
    if option.type is None:
        return "no value"
    many = "values with commas between them" if option.type.many else "one value"
    return f"{many}, as in `{name} {option.example}`"
