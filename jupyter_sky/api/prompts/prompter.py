"""Shows the prompts of ranks in the cell: for debugger commands, lines, and passwords.

It is called repeatedly while ranks wait. Several ranks may be at a prompt: commands go to those
that the user has chosen, and after a command, these get a moment to return to their prompts before
others are shown.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from jupyter_sky.api.prompts.keyboard import Question, TakenBack
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.formatting import format_ranks, is_terminal
from jupyter_sky.transport.protocol.debugging import LONGEST_ANSWER, AnswerKind
from jupyter_sky.transport.protocol.events import Prompted

_PATIENCE = 2.0
"""Seconds that the ranks which were told something get to come back before others are asked."""

_TOGETHER = 0.2
"""Seconds within which ranks come to their first prompts together."""

_CHOICE = re.compile(r"\s*ranks?(?:\s+(all|\d+(?:\s*-\s*\d+)?(?:\s*,\s*\d+(?:\s*-\s*\d+)?)*))?\s*")
_LONGEST_TEXT = 128 * 1024  # characters

_HELP = (
    "The debugger of {ranks}: `n`, `s`, `c`, `u`, `d`, `l`, `w`, `p NAME`, `q`, and `help`.{more}\n"
)
_SEVERAL = " `rank 1` goes to another rank, `ranks all` gives commands to all; `ranks` lists them."


class Prompter:
    """Shows the prompts of a run's ranks to the user.

    Parameters
    ----------
    run
        The run.
    flush
        Shows the output so far.
    everyone
        Whether commands initially go to all ranks.
    """

    def __init__(
        self,
        run: RunHandle,
        flush: Callable[[], object] = lambda: None,
        everyone: bool = False,
    ) -> None:
        self._run = run
        self._answers = run.answers
        self._flush = flush
        self._ranks = run.task.ranks
        self._chosen: frozenset[int] = frozenset(self._ranks) if everyone else frozenset()
        self._shown: set[tuple[int, int]] = set()
        self._labelled = set(self._ranks) if len(self._ranks) == 1 else set()
        self._arrived: dict[int, Prompted] = {}
        self._awaited: frozenset[int] = frozenset()
        self._told = 0.0
        self._has_begun = False
        self._question = Question(run.answers.prompts.lock)
        self._asked: frozenset[int] = frozenset()
        run.answers.prompts.observe(self)

    def __call__(self, event: Prompted | None) -> None:
        """Note a prompt, and ask the user if it is time to."""
        if event is not None:
            if not self._has_begun:
                self._has_begun = True
                self._answers.hold()
                # Other prompts may be about to arrive: the lowest rank is asked first.
                self._awaited = self._chosen or frozenset(self._ranks)
                self._told = time.monotonic() - (0 if self._chosen else _PATIENCE - _TOGETHER)
            if event.kind == "debugger":
                self._arrived[event.rank] = event
        waiting = self._answers.prompts.open
        for asked in waiting.values():
            if asked.kind != "debugger" and asked == event:
                self._ask_value(asked)
                return
        at_prompt = {
            rank: each for rank, each in waiting.items() if self._arrived.get(rank) == each
        }
        if at_prompt and not self._is_too_early(at_prompt):
            self._ask_command(at_prompt)

    # When to ask, and for which ranks

    def _is_too_early(self, at_prompt: Collection[int]) -> bool:
        """Return whether ranks that got a command may soon be at their prompts again."""
        if self._awaited <= set(at_prompt):
            return False
        return time.monotonic() - self._told < _PATIENCE

    def _choose(self, at_prompt: Sequence[int]) -> list[int]:
        """Return the ranks that the next command goes to."""
        chosen = [rank for rank in at_prompt if rank in self._chosen]
        if chosen:
            return chosen
        self._chosen = frozenset(at_prompt[:1])
        return list(at_prompt[:1])

    def on_removed(self, rank: int) -> None:
        """Withdraw a question that ranks no longer wait for; called in the background loop."""
        self._asked -= {rank}
        if not self._asked:
            self._question.take_back()

    # Asking

    def _ask_value(self, event: Prompted) -> None:
        self._flush()
        is_hidden = event.kind == "password"
        try:
            self._asked = frozenset([event.rank])
            line = self._question.ask(event.prompt, is_hidden, lambda: self._is_open(event))
        except TakenBack:
            self._end_line()
        except EOFError:
            self._answer([event], "eof")
        except NotImplementedError:
            self._answer([event], "none")
        else:
            if self._is_too_long(line):
                self._ask_value(event)
                return
            self._answer([event], "line", line)

    def _ask_command(self, at_prompt: Mapping[int, Prompted]) -> None:
        self._flush()
        before = self._chosen
        ranks = self._choose(list(at_prompt))
        if not before:
            more = _SEVERAL if len(self._ranks) > 1 else ""
            self._say(_HELP.format(ranks=format_ranks(ranks), more=more))
        self._show_texts({rank: at_prompt[rank] for rank in ranks})
        prompt = f"({format_ranks(ranks)}) " if len(self._ranks) > 1 else "(Pdb) "
        events = [at_prompt[rank] for rank in ranks]
        try:
            self._asked = frozenset(ranks)
            line = self._question.ask(prompt, False, lambda: any(map(self._is_open, events)))
        except TakenBack:
            self._end_line()
        except EOFError:
            self._answer(events, "eof")
        except NotImplementedError:
            self._answer(events, "none")
        else:
            # `rank` alone is a variable in many cells: the debugger shows its value.
            if (choice := _CHOICE.fullmatch(line)) and line.strip() != "rank":
                self._change_choice(choice[1])
            elif not self._is_too_long(line):
                self._answer(events, "line", line)

    def _is_too_long(self, line: str) -> bool:
        """Return whether a line is too long to be sent; then the user is told."""
        is_too_long = len(line) > LONGEST_ANSWER
        if is_too_long:
            self._say(f"the answer is too long: give at most {LONGEST_ANSWER:,} characters\n")
        return is_too_long

    def _change_choice(self, words: str | None) -> None:
        """Send commands to other ranks from now on, or list those at a prompt."""
        if words is None:
            self._say(f"{self._answers.prompts.sentence}\n")
            return
        wanted = frozenset(self._ranks) if words == "all" else _numbers(words)
        waiting = self._answers.prompts.open
        if not wanted & waiting.keys():
            who = format_ranks(sorted(wanted))
            self._say(f"{who}: not at a prompt. {self._answers.prompts.sentence}\n")
            return
        self._chosen = wanted
        self._awaited = frozenset()

    def _show_texts(self, at_prompt: Mapping[int, Prompted]) -> None:
        """Show new output of the ranks' debuggers, combining equal output."""
        groups: dict[str, list[int]] = {}
        for rank, event in at_prompt.items():
            if event.text and (rank, event.number) not in self._shown:
                groups.setdefault(event.text, []).append(rank)
        for text, ranks in groups.items():
            label = f"{format_ranks(ranks)}:\n" if set(ranks) != self._labelled else ""
            self._labelled = set(ranks)
            self._say(f"{label}{text[:_LONGEST_TEXT]}".rstrip("\n") + "\n")
        self._shown = {(rank, event.number) for rank, event in at_prompt.items()}

    def _say(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _end_line(self) -> None:
        # A terminal's cursor is still behind the prompt; a page removes the prompt when the cell
        # ends.
        if is_terminal(sys.stdout):
            self._say("\n")

    def _is_open(self, event: Prompted) -> bool:
        return self._answers.prompts.open.get(event.rank) == event

    def _answer(self, events: Sequence[Prompted], kind: AnswerKind, text: str = "") -> None:
        for event in events:
            if self._is_open(event):
                self._answers.prompts.take(event.rank)
                self._answers.answer(event, kind, text)
        self._awaited = frozenset(event.rank for event in events)
        self._told = time.monotonic()


def _numbers(words: str) -> frozenset[int]:
    found: set[int] = set()
    for part in words.split(","):
        first, _, last = part.partition("-")
        start, end = sorted((int(first), int(last or first)))
        found.update(range(start, min(end, start + 100_000) + 1))
    return frozenset(found)
