"""The type of an option: how its values are parsed, combined and completed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.errors import UsageError


@dataclass(frozen=True)
class CompletionContext:
    """The context for completing values.

    Attributes
    ----------
    variables
        The namespace of the notebook.
    body
        The cell below the line.
    nodes
        The ranks of each node of the current cluster.
    clusters
        The names of all clusters.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    body: str = ""
    nodes: tuple[tuple[int, ...], ...] = ()
    clusters: tuple[str, ...] = ()


class InvalidValue(ValueError):
    """A text is not a value of an option's type; the message is the wrong part of it."""


def as_word(value: Any) -> str:
    """Return the text that a user would type for a value, as most types have it."""
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def no_completions(context: CompletionContext) -> Iterable[str]:
    """Return no completions."""
    return ()


@dataclass(frozen=True)
class OptionType:
    """The type of an option's values.

    Attributes
    ----------
    description
        Describes the values, to follow "takes", like "a whole number".
    parse
        Parses one value; raises a ValueError if the text is not one, or a UsageError that says what
        to type instead.
    write
        Returns the text that a user would type for a value.
    many
        Whether several values may be given, separated by commas or blanks.
    combine
        Combines several values; raises a ValueError if they exclude each other.
    separator
        Separates values in one word, as a regular expression.
    completions
        Returns the completions for Tab.
    begins_with_hyphens
        Whether a value may look like an option itself.
    """

    description: str
    parse: Callable[[str], Any]
    write: Callable[[Any], str] = field(default=as_word, kw_only=True)
    many: bool = False
    combine: Callable[[list[Any]], Any] = tuple
    separator: str = ","
    completions: Callable[[CompletionContext], Iterable[str]] = no_completions
    begins_with_hyphens: bool = False

    def split(self, texts: Iterable[str]) -> list[str]:
        """Split words at the separator, if several values are allowed."""
        if not self.many:
            return list(texts)
        parts = (part.strip() for text in texts for part in re.split(self.separator, text))
        return [part for part in parts if part]

    def convert(self, texts: list[str]) -> Any:
        """Parse texts that `split` returned, and combine them if several are allowed.

        Raises
        ------
        InvalidValue
            If one of them, or their combination, is not of this type.
        UsageError
            If one of them is not, and the type knows what to type instead.
        """
        values = []
        for text in texts:
            try:
                values.append(self.parse(text))
            except UsageError:
                raise
            except ValueError:
                raise InvalidValue(text) from None
        if not self.many:
            return values[0]
        try:
            return self.combine(values)
        except ValueError:
            raise InvalidValue(",".join(texts)) from None
