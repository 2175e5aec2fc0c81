"""Safe displays: reduces what ranks display to parts that cannot run code in the page.

Rich output is part of the page: a script in it has the user's rights in Jupyter. Text and images
are kept, and HTML and SVG are cleaned by bleach with allow-lists.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bleach.sanitizer import Cleaner

LONGEST = 1024 * 1024
"""Characters of HTML or SVG, above which it is left out: to clean it takes too long."""

_IMAGES = ("image/png", "image/jpeg", "image/gif")
_TAGS = (
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption "
    "figure h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub "
    "summary sup table tbody td tfoot th thead tr tt u ul var"
)
_ATTRIBUTES = (
    "align alt border cellpadding cellspacing class colspan dir height href lang open rowspan "
    "scope src start style title valign width"
)
_SVG_TAGS = (
    "svg g defs symbol use image path rect circle ellipse line polyline polygon text tspan "
    "textPath clipPath mask pattern marker linearGradient radialGradient stop"
)
_SVG_ATTRIBUTES = (
    "id class style transform viewBox preserveAspectRatio version width height x y x1 y1 x2 y2 "
    "dx dy cx cy r rx ry fx fy d points offset rotate startOffset textLength lengthAdjust "
    "pathLength fill fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-linecap "
    "stroke-linejoin stroke-dasharray stroke-dashoffset stroke-miterlimit opacity color display "
    "visibility stop-color stop-opacity clip-path clip-rule clipPathUnits mask maskUnits "
    "maskContentUnits marker-start marker-mid marker-end markerWidth markerHeight markerUnits "
    "refX refY orient gradientUnits gradientTransform spreadMethod patternUnits "
    "patternContentUnits patternTransform font-family font-size font-style font-weight "
    "text-anchor text-decoration dominant-baseline alignment-baseline baseline-shift "
    "letter-spacing vector-effect shape-rendering href xlink:href"
)
_PROPERTIES = (
    "background-color border border-bottom border-collapse border-color border-left "
    "border-right border-spacing border-style border-top border-width color font-family "
    "font-size font-style font-variant font-weight height letter-spacing line-height margin "
    "margin-bottom margin-left margin-right margin-top max-height max-width min-width opacity "
    "overflow padding padding-bottom padding-left padding-right padding-top stroke-dasharray "
    "stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity "
    "stroke-width stroke stop-color stop-opacity fill fill-opacity fill-rule text-align "
    "text-anchor text-decoration text-indent vertical-align white-space width dominant-baseline "
    "clip-path clip-rule"
)
# Their text is not for readers. Whatever is left of them, for example if nested, bleach removes.
_NOT_SHOWN = re.compile(r"<(script|style|metadata|title|desc)\b", re.I)
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")
_DRAWN = re.compile(r"data:image/(png|jpeg|gif);base64,[A-Za-z0-9+/=\s]*")
_LINK = re.compile(r"(https?|mailto):", re.I)
# `url(...)` may only refer to the same drawing; anything else would be fetched.
_FETCHES = re.compile(r"\\|url\s*\(\s*['\"]?\s*(?!#)|@|image-set|src\s*\(", re.I)


def safe_parts(
    data: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], Set[str]]:
    """Return the parts of a display that cannot run code in the page, and the kinds left out."""
    kept = safe_data(data)
    return kept, safe_metadata(metadata), data.keys() - kept.keys()


def left_out_notice(kinds: Iterable[str], setting: str) -> str:
    """Return the line that says that some kinds of data are not shown with a setting."""
    return f"[{', '.join(sorted(kinds))}: not shown with `{setting}`]\n"


def safe_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of displayed data that cannot run code in the page, by MIME type."""
    cleaners: dict[str, Callable[[Any], str]] = dict.fromkeys(_IMAGES, _image)
    cleaners |= {"text/plain": str, "text/html": _html, "image/svg+xml": _svg}
    kept = {mime: cleaners[mime](value) for mime, value in data.items() if mime in cleaners}
    return {mime: value for mime, value in kept.items() if value}


def safe_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the size of images from metadata."""
    return {
        mime: {
            name: said[name]
            for name in ("width", "height")
            if isinstance(said.get(name), int | float)
        }
        for mime, said in metadata.items()
        if mime in _IMAGES and isinstance(said, Mapping)
    }


def _image(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str) and _BASE64.fullmatch(value) else ""


def _html(value: Any) -> str:
    return _clean(value, _html_cleaner())


def _svg(value: Any) -> str:
    drawn = _clean(value, _svg_cleaner()).strip()
    # bleach drops the namespace declaration, without which a page shows no image.
    name = '<svg xmlns="http://www.w3.org/2000/svg"'
    return drawn.replace("<svg", name, 1) if drawn.startswith("<svg") else ""


def _clean(value: Any, cleaner: Cleaner) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        return ""
    return str(cleaner.clean("".join(_shown(value))))


def _shown(text: str) -> Iterator[str]:
    """Yield the parts of a text outside elements that are not for readers."""
    position, unclosed = 0, set()
    for opening in _NOT_SHOWN.finditer(text):
        name = opening[1].lower()
        if opening.start() < position or name in unclosed:
            continue
        closing = re.compile(rf"</{name}\s*>", re.I).search(text, opening.end())
        if closing is None:
            unclosed.add(name)
            continue
        yield text[position : opening.start()]
        position = closing.end()
    yield text[position:]


@cache
def _html_cleaner() -> Cleaner:
    names = set(_ATTRIBUTES.split())

    def is_kept(tag: str, name: str, value: str) -> bool:
        if name == "href":
            return tag == "a" and bool(_LINK.match(value))
        if name == "src":
            return tag == "img" and bool(_DRAWN.fullmatch(value))
        return (
            name in names and not (name == "style" and "url" in value.lower()) and _is_inert(value)
        )

    return _cleaner(_TAGS, is_kept)


@cache
def _svg_cleaner() -> Cleaner:
    names = set(_SVG_ATTRIBUTES.split())

    def is_kept(tag: str, name: str, value: str) -> bool:
        if name in ("href", "xlink:href"):
            return value.startswith("#") or (tag == "image" and bool(_DRAWN.fullmatch(value)))
        return name in names and _is_inert(value)

    return _cleaner(_SVG_TAGS, is_kept)


def _is_inert(value: str) -> bool:
    """Return whether a page would fetch nothing for the value of an attribute."""
    return _FETCHES.search(value) is None


def _cleaner(tags: str, is_kept: Callable[[str, str, str], bool]) -> Cleaner:
    from bleach.css_sanitizer import CSSSanitizer
    from bleach.sanitizer import Cleaner

    properties = _PROPERTIES.split()
    return Cleaner(
        tags=set(tags.split()),
        attributes=is_kept,
        protocols={"http", "https", "mailto", "data"},
        strip=True,
        css_sanitizer=CSSSanitizer(properties, properties),
    )
