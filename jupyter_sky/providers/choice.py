"""Several possible places for a cluster, and the order in which they are tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.spec import Accelerator, ClusterSpec, Image

Allocation = Literal["on-demand", "spot", "spot-if-available"]
Selection = Literal["cheapest", "first"]


@dataclass(frozen=True)
class Spec:
    """One of several possible places for the nodes of a pool.

    Arguments that are not given are the pool's.

    Parameters
    ----------
    provider
        Where nodes come from.
    accelerator, nodes, procs_per_node, cpus, memory, image
        As for `ComputePool`.
    allocation
        ``"on-demand"``, ``"spot"`` for cheaper machines that may be taken away, or
        ``"spot-if-available"``: spot machines, or others if there are none. By default, as the
        provider is configured.
    max_hourly_cost
        Dollars that a node may cost per hour.

    Raises
    ------
    UsageError
        If an argument is invalid.

    Examples
    --------
    >>> with sky.ComputePool(
    ...     sky.Spec(sky.SSH("gpu1,gpu2"), nodes=2),
    ...     sky.Spec(sky.AWS(), accelerator="A100", nodes=2, allocation="spot-if-available"),
    ...     selection="first",
    ... ) as pool: ...
    """

    provider: Provider
    accelerator: Accelerator | str | None = None
    nodes: int | None = None
    procs_per_node: int | None = None
    cpus: str | int | None = None
    memory: str | float | None = None
    image: Image | None = None
    allocation: Allocation | None = None
    max_hourly_cost: float | None = None

    def __post_init__(self) -> None:
        if not _is_provider(self.provider):
            raise UsageError(f"{self.provider!r} is no provider: write sky.Spec(sky.Local()).")
        if self.allocation not in (None, "on-demand", "spot", "spot-if-available"):
            raise UsageError(
                f"allocation={self.allocation!r}: type 'on-demand', 'spot' or 'spot-if-available'."
            )
        name = getattr(self.provider, "name", "this provider")
        if self.allocation == "spot" and not self._rents:
            raise UsageError(f"{name} has no spot machines: leave out allocation='spot'.")
        if self.max_hourly_cost is not None and not self.max_hourly_cost > 0:
            raise UsageError(f"max_hourly_cost={self.max_hourly_cost!r} is no amount of dollars.")

    def candidates(self, common: ClusterSpec, nodes: int | None = None) -> list[Candidate]:
        """Return the places that it stands for.

        Parameters
        ----------
        common
            The pool's arguments for all places.
        nodes
            The number of nodes there, if the pool names one; by default as many as the provider.
        """
        given = {name: value for name in _OF_CLUSTER if (value := getattr(self, name)) is not None}
        given.setdefault("nodes", self.provider.default_nodes if nodes is None else nodes)
        spec = replace(common, **given)
        provider: Any = self.provider
        if not self._rents:
            return [Candidate(provider, spec)]
        if self.max_hourly_cost is not None:
            provider = replace(provider, max_price=self.max_hourly_cost * spec.nodes)
        if self.allocation is None:
            return [Candidate(provider, spec)]
        kinds = {"on-demand": [False], "spot": [True], "spot-if-available": [True, False]}
        made = [
            replace(provider, spot=each, spot_or_on_demand=False) for each in kinds[self.allocation]
        ]
        return [Candidate(cast("Provider", each), spec) for each in made]

    @property
    def _rents(self) -> bool:
        # `SSH` has `spot`, too: whether the hosts that it gets are rented so.
        return hasattr(self.provider, "spot") and hasattr(self.provider, "max_price")


def check_places(provider: object, specs: Sequence[object], selection: object) -> None:
    """Check the arguments of a pool about the places of its nodes.

    Raises
    ------
    UsageError
        If they are invalid.
    """
    for each in specs:
        if not isinstance(each, Spec):
            raise UsageError(
                f"{each!r} is no sky.Spec: write sky.ComputePool(provider=sky.Local(), nodes=2), "
                "or sky.ComputePool(sky.Spec(sky.Local()), …) for places to choose from."
            )
    if provider is not None and not _is_provider(provider):
        is_class = isinstance(provider, type) and hasattr(provider, "default_nodes")
        name = provider.__name__ if is_class else "Local"  # type: ignore[attr-defined]
        raise UsageError(f"provider={provider!r} is not a provider: write provider=sky.{name}().")
    if specs and provider is not None:
        raise UsageError("give a pool provider= or several sky.Spec(provider), not both.")
    _check_selection(selection)


def _check_selection(selection: object) -> None:
    if selection not in ("cheapest", "first"):
        raise UsageError(f"selection={selection!r}: type 'cheapest' or 'first'.")


def _is_provider(value: object) -> bool:
    return hasattr(value, "default_nodes") and not isinstance(value, type)


_OF_CLUSTER = {each.name for each in fields(Spec)} & {each.name for each in fields(ClusterSpec)}


@dataclass(frozen=True)
class Candidate:
    """A possible place for a cluster."""

    provider: Provider
    spec: ClusterSpec

    @property
    def name(self) -> str:
        """What the user calls it."""
        name = self.provider.name
        return f"{name} spot" if getattr(self.provider, "spot", False) else name


C = TypeVar("C", bound=Candidate)


@runtime_checkable
class Priced(Protocol):
    """A provider that costs money."""

    def price_of(self, spec: ClusterSpec) -> float | None:
        """Return the dollars per hour of a cluster; ``None`` if that is not known.

        Raises
        ------
        UsageError
            If it does not have what is wanted.
        """


def in_order(
    candidates: Sequence[C], selection: Selection
) -> tuple[list[tuple[C, float | None]], list[str]]:
    """Return the places to try, in order, with their prices, and why others are excluded.

    This asks for prices, but starts nothing.

    Parameters
    ----------
    candidates
        The places.
    selection
        ``"cheapest"`` compares their prices, ``"first"`` keeps their order.

    Returns
    -------
    list of tuple
        The places, with the price of all nodes in dollars per hour; ``None`` if that is not known.
    list of str
        Sentences about why others are excluded.

    Raises
    ------
    UsageError
        If none of them has what is wanted.
    """
    _check_selection(selection)
    found: list[tuple[C, float | None]] = []
    refused: list[str] = []
    for each in candidates:
        try:
            found.append((each, _price(each)))
        except SkyError as error:
            refused.append(f"{each.name}: {error}")
    if selection == "cheapest":
        found.sort(key=lambda entry: math.inf if entry[1] is None else entry[1])
    if not found:
        raise UsageError(f"none of these has what is wanted: {'; '.join(refused)}")
    return found, refused


def _price(candidate: Candidate) -> float | None:
    provider: object = candidate.provider
    return provider.price_of(candidate.spec) if isinstance(provider, Priced) else 0.0
