"""Names that `lazy import` has bound (PEP 810): the ranks get what they stand for."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.pickled import Pickled

pytestmark = pytest.mark.skipif(sys.version_info < (3, 15), reason="new in Python 3.15")


def received(imports: str, cell: str) -> dict[str, Any]:
    """Return what a cell on a rank gets of what the notebook has imported."""
    namespace: dict[str, Any] = {}
    exec(imports, namespace)
    names = analyse(cell)
    collector = ItemCollector(namespace, names)
    items = collector.collect(names.reads, lambda name, value: False)
    return {item.key: loaded(item.pickled) for item in items}


def loaded(pickled: Pickled) -> Any:
    return pickling.load(pickled.stream, pickled.buffers)


def test_a_lazy_import_travels_as_what_it_stands_for() -> None:
    got = received(
        "lazy import colorsys, email.mime.text\nlazy from fractions import Fraction as F",
        "print(colorsys, F, email.mime.text.MIMEText)",
    )
    import colorsys
    import email
    from fractions import Fraction

    assert got == {"colorsys": colorsys, "F": Fraction, "email": email}
    assert "email.mime.text" in sys.modules  # which the rank imports, too


def test_it_also_travels_within_another_value() -> None:
    namespace: dict[str, Any] = {}
    exec("lazy import colorsys\nfound = [globals()['colorsys']]", namespace)
    [module] = loaded(pickling.dump(namespace["found"]))
    assert isinstance(module, types.ModuleType) and module.__name__ == "colorsys"


def test_one_that_fails_is_an_error_of_the_cell() -> None:
    with pytest.raises(UsageError, match="nosuch cannot be sent, as its lazy import fails here: "):
        received("lazy import nosuch", "nosuch.x")
