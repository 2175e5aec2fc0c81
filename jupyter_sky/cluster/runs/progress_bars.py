"""Progress bars in what ranks print: those of tqdm, rich, Keras and Hugging Face's libraries."""

from __future__ import annotations

import re

from jupyter_sky.cluster.snapshot import ProgressView

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UP = "\x1b[A"  # tqdm goes back up after it has drawn a bar below another one

# tqdm cuts a bar off where the line is full, also in the middle of a time.
_TQDM = re.compile(
    r"(?:(?P<label>[^\r\n|]{0,80}?): +)?(?P<percent>\d{1,3})%\|[^|\r\n]*\| *"
    r"(?P<count>[\d.]+[kMGTP]?/[\d.]+[kMGTP]?) *\[[\d:.]+<(?P<left>\d{1,9}(?::\d\d){1,2})?"
)
# From the beginning of the bar: the text before it may be long, like the row of a table.
_RICH = re.compile(r"(?<![━╺╸])[━╺╸]{5,} *(?P<percent>\d{1,3})%(?: +(?P<left>\d{1,9}:\d\d:\d\d))?")
_KERAS = re.compile(r"(?P<count>\d{1,15}/\d{1,15}) [━]{5,} ?(?P<left>\d{1,9}(?:s|:\d\d)(?![\w]))?")
_LABEL = 80  # characters, at most


def of_calls(answered: int, total: int, seconds: float) -> ProgressView | None:
    """Return the progress of a run that carries out calls; ``None`` if it has only one."""
    if total < 2:
        return None
    left = seconds * (total - answered) / answered if answered else None
    return {
        "label": "calls",
        "part": answered / total,
        "count": f"{answered}/{total}",
        "left": left,
    }


def find_progress(text: str) -> ProgressView | None:
    """Return the last progress bar in a text; of nested ones, the outermost."""
    if "%|" in text:
        return _of_tqdm(text)
    if "━" in text:
        return _of_others(_ESCAPE.sub("", text))
    return None


def _of_tqdm(text: str) -> ProgressView | None:
    inner: ProgressView | None = None
    for line in reversed(re.split(r"[\r\n]", text)):
        found = _TQDM.search(line) if "%|" in line else None
        if found is None:
            continue
        view = _view(found, found["label"], int(found["percent"]) / 100, found["count"])
        if _UP not in line[found.end() :]:
            return view
        inner = inner or view
    return inner


def _of_others(text: str) -> ProgressView | None:
    for line in reversed(re.split(r"[\r\n]", text)):
        if found := _RICH.search(line):
            label = line[: found.start()].rstrip()[-_LABEL:]
            return _view(found, label, int(found["percent"]) / 100, f"{found['percent']} %")
        if found := _KERAS.search(line):
            done, total = map(int, found["count"].split("/"))
            return _view(found, "", done / total if total else 0.0, found["count"])
    return None


def _view(found: re.Match[str], label: str | None, part: float, count: str) -> ProgressView:
    label = _ESCAPE.sub("", label or "").strip()
    left = _seconds(found["left"]) if part < 1 else None
    return {"label": label, "part": min(1.0, part), "count": count, "left": left}


def _seconds(text: str | None) -> float | None:
    """Return the seconds in a time like ``"8s"``, ``"01:30"`` or ``"1:02:03"``."""
    if not text:
        return None
    seconds = 0
    for part in text.rstrip("s").split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds)
