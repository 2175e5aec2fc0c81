"""``--display safe``: what ranks display cannot act in the page, and stays what it is otherwise."""

from __future__ import annotations

import base64
import io
import re
import xml.dom.minidom
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_sky.api.display.safe_display import LONGEST, safe_data, safe_metadata
from tests.notebook.kernels import LiveNotebook

HARMFUL = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><a xlink:href='javascript:alert(1)'><rect/></a></svg>",
    "<svg><foreignObject><iframe src=x></iframe></foreignObject></svg>",
    "<svg><animate attributeName=href to='javascript:alert(1)'/></svg>",
    "<svg><use href='https://e.org/x.svg#a'/><image href='https://e.org/x.png'/></svg>",
    "<svg><rect fill='url(https://e.org)' style='fill: url(https://e.org)'/></svg>",
    "<svg><rect style='fill: u\\72l(https://e.org)'/></svg>",
    "<svg><style>@import 'https://e.org'</style></svg>",
    "<svg></p><style><a id='</style><img src=1 onerror=alert(1)>'>",
    "<a href='javascript:alert(1)'>x</a>",
    "<a href=' java\nscript:alert(1)'>x</a>",
    "<a href='data:text/html,x'>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<object data=x></object><embed src=x><base href=//e.org><link rel=stylesheet href=//e.org>",
    "<meta http-equiv=refresh content='0;url=//e.org'>",
    "<form action=//e.org><input name=password></form>",
    "<p data-commandlinker-command='terminal:create-new' onclick=alert(1)>x</p>",
    "<div style='position: fixed; background-image: url(//e.org)'>x</div>",
    "<img src='https://e.org/pixel.png'><img src='data:image/svg+xml;base64,AAAA'>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<math><mtext><table><mglyph><style><!--</style><img src=x onerror=alert(1)>",
    "<template><script>alert(1)</script></template>",
    "<p id=login name=login>x</p>",
]

TAGS = re.compile(
    "script|style|iframe|object|embed|base|link|meta|form|input|button|textarea|select|noscript|"
    "template|foreignobject|animate|set|handler|math|annotation-xml|body|html|head|frame"
)


class Acting(HTMLParser):
    """Collects what in a page could run, fetch, or take the place of something else."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if TAGS.fullmatch(tag):
            self.found.append(tag)
        for name, value in attrs:
            text = (value or "").strip().lower()
            fetched = name in ("src", "href", "xlink:href") and not text.startswith(
                ("#", "https:", "http:", "mailto:", "data:image/png;base64,")
            )
            fetched |= name in ("src", "xlink:href") and text.startswith("http")
            fetched |= name == "href" and text.startswith("http") and tag != "a"
            if name.startswith(("on", "data-", "form", "srcdoc")) or fetched:
                self.found.append(f"{tag} {name}={value}")
            if name in ("id", "name") and text == "login":
                self.found.append(f"{tag} {name}={value}")
            if "url(" in text.replace("url(#", "") or "\\" in text or "position" in text:
                self.found.append(f"{tag} {name}={value}")


def acting(markup: str) -> list[str]:
    reader = Acting()
    reader.feed(markup)
    reader.close()
    return reader.found


@pytest.mark.parametrize("markup", HARMFUL)
def test_nothing_that_acts_is_left(markup: str) -> None:
    assert acting(markup)  # the reader of this test knows it
    kept = safe_data({"text/html": markup, "image/svg+xml": markup})
    for said in kept.values():
        assert acting(said) == []
    assert "id=" not in kept.get("text/html", "")


PIECES = st.sampled_from(
    [*HARMFUL, "<b>", "</b>", "<svg>", "</svg>", "<!--", "-->", "'", '"', "<p "]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=8))
def test_nothing_that_acts_is_left_of_any_mixture(pieces: list[str]) -> None:
    markup = "".join(pieces)
    for said in safe_data({"text/html": markup, "image/svg+xml": markup}).values():
        assert acting(said) == []


def test_a_figure_and_a_table_stay_as_they_are() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    pandas = pytest.importorskip("pandas")
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([1, 2, 3])
    axes.imshow([[1, 2], [3, 4]])
    axes.set_title("a < b & c")
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg")
    kept = safe_data({"image/svg+xml": drawn.getvalue()})["image/svg+xml"]
    before, after = (xml.dom.minidom.parseString(text) for text in (drawn.getvalue(), kept))
    for tag in ("path", "text", "use", "image", "clipPath", "g"):
        assert len(after.getElementsByTagName(tag)) == len(before.getElementsByTagName(tag)) > 0
    assert after.documentElement.namespaceURI == "http://www.w3.org/2000/svg"
    assert "a &lt; b &amp; c" in kept
    frame = pandas.DataFrame({"loss": [0.25, 0.5]})
    shown = safe_data({"text/html": frame._repr_html_(), "text/plain": repr(frame)})
    assert '<table border="1" class="dataframe">' in shown["text/html"]
    assert "<td>0.25</td>" in shown["text/html"]
    assert "vertical-align" not in shown["text/html"]
    assert shown["text/plain"] == repr(frame)


def test_lines_and_texts_look_as_they_were_drawn() -> None:
    drawn = '<text text-anchor="middle" style="stroke-dashoffset: 2; clip-rule: nonzero;">a</text>'
    assert drawn in safe_data({"image/svg+xml": f"<svg>{drawn}</svg>"})["image/svg+xml"]
    typed = '<p style="border-right: 1px; text-decoration: underline;">a</p>'
    assert safe_data({"text/html": typed})["text/html"] == typed


def test_images_are_images_and_the_rest_is_left_out() -> None:
    picture = bytes(range(256))
    given_data: dict[str, Any] = {
        "text/plain": "here",
        "image/png": picture,
        "image/jpeg": base64.b64encode(picture).decode(),
        "image/gif": '" onload="alert(1)',
        "text/html": "<b>" * LONGEST,
        "text/markdown": "<script>alert(1)</script>",
        "text/latex": r"\href{javascript:alert(1)}{x}",
        "application/javascript": "alert(1)",
        "application/vnd.jupyter.widget-view+json": {"model_id": "x"},
        "application/vnd.plotly.v1+json": {},
    }
    encoded = base64.b64encode(picture).decode()
    assert safe_data(given_data) == {
        "text/plain": "here",
        "image/png": encoded,
        "image/jpeg": encoded,
    }
    metadata = {"image/png": {"width": 5, "height": "5", "onload": 1}, "text/html": {"isolated": 0}}
    assert safe_metadata(metadata) == {"image/png": {"width": 5}}


def test_a_cell_shows_what_is_safe_and_says_what_is_not(pair: LiveNotebook) -> None:
    code = (
        "from IPython.display import HTML, Javascript, display\n"
        "display(HTML('<b onclick=alert(1)>bold</b>'), Javascript('alert(1)'))\n"
        "display(Javascript('alert(2)'))"
    )
    rich = pair.succeed(f"%%sky\n{code}")
    assert rich.data[0]["text/html"] == "<b onclick=alert(1)>bold</b>"
    assert rich.data[1]["application/javascript"] == "alert(1)"
    safe = pair.succeed(f"%%sky --display safe\n{code}")
    assert [shown.get("text/html") for shown in safe.data] == ["<b>bold</b>", None, None]
    assert not any("application/javascript" in shown for shown in safe.data)
    assert safe.stdout == "[application/javascript: not shown with `--display safe`]\n"
    pair.succeed("%config Sky.display = 'safe'")
    try:
        assert pair.succeed(f"%%sky\n{code}").data == safe.data
        assert pair.succeed(f"%%sky --display rich\n{code}").data == rich.data
    finally:
        pair.succeed("%config Sky.display = 'rich'")


@pytest.mark.parametrize("command", ["%debug", "%sky debug --ranks head"])
def test_a_debugger_shows_what_is_safe(pair: LiveNotebook, command: str) -> None:
    pair.succeed("%config Sky.display = 'safe'")
    try:
        pair.run("%%sky --ranks head\nfrom IPython.display import HTML, display\n1 / 0")
        cell = pair.start(command)
        pair.answer("!display(HTML('<b onclick=alert(1)>bold</b>'))")
        pair.answer("q")
        shown = pair.finish(cell).data
        assert "<b>bold</b>" in [each.get("text/html") for each in shown]
        assert "onclick" not in str(shown)
    finally:
        pair.succeed("%config Sky.display = 'rich'")


def test_a_rank_changes_no_display_of_the_notebook(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "from IPython.display import display\nhandle = display('mine', display_id='known')"
    )
    pair.succeed(
        "%%sky\nfrom IPython.display import display, update_display\n"
        "update_display('theirs', display_id='known')"
    )
    assert cell.shown == ["'mine'"]
    # Its own it does, as before.
    own = pair.succeed(
        "%%sky\ndisplay('one', display_id='known')\nupdate_display('two', display_id='known')"
    )
    assert own.shown == ["'two'"]
