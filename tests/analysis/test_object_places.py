"""Where objects are found, whatever kind of objects lead to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_sky.analysis.labels import EACH, MODULES, PARAMETERS, ROWS
from jupyter_sky.analysis.object_places import ObjectPlace


class Proxy:
    """Stands for an object that is not there, as proxies of web frameworks do."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("working outside of a request")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a request")


ODD = [None, 0, Proxy(), SimpleNamespace(_modules=[1], _parameters=3, _buffers="text")]


@pytest.mark.parametrize("step", [EACH, MODULES, PARAMETERS, ROWS, ".data", ".x", "[0]", "['x']"])
def test_nothing_is_found_in_odd_objects(step: str) -> None:
    for number in range(len(ODD)):
        found = ObjectPlace("odd", (step, ".x")).objects_in(lambda name, at=number: [ODD[at]])
        assert found == [], number


def test_parts_are_found_by_attributes_keys_and_loops() -> None:
    inner = SimpleNamespace(x=1)
    runs = {"a": [SimpleNamespace(rest=inner), SimpleNamespace(rest=3)]}

    def found(*steps: str) -> list[Any]:
        return ObjectPlace("runs", steps).objects_in({"runs": [runs]}.__getitem__)

    assert found("['a']", "[0]", ".rest") == [inner]
    assert found(EACH, EACH, ".rest") == [inner, 3]
    assert found("['b']") == []
