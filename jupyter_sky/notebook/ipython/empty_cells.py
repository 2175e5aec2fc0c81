"""A cell with nothing but ``%%sky`` and options starts the cluster, as ``%sky up`` does.

IPython refuses a cell magic without a body before the magic is asked, so such a cell gets one: an
empty line.
"""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell


class EmptyCells:
    """Gives cells without a body one.

    Parameters
    ----------
    shell
        The shell of the notebook.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        shell.input_transformers_cleanup.append(_with_body)

    def remove(self) -> None:
        """Leave cells as they are."""
        self._shell.input_transformers_cleanup.remove(_with_body)


def _with_body(lines: list[str]) -> list[str]:
    is_alone = len(lines) == 1 and lines[0].split(maxsplit=1)[:1] == ["%%sky"]
    return [f"{lines[0].rstrip()}\n", "\n"] if is_alone else lines


# Otherwise a terminal would take the first line of such a cell for all of it.
_with_body.has_side_effects = True  # type: ignore[attr-defined]
