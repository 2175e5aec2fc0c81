"""The content that ranks were given of the notebook's objects, by digests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable


class DigestsOnRanks:
    """For each object and rank, the digest that the object had when the rank had the same.

    Ranks that have the same share an entry: there are thousands of objects, and of ranks.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, dict[str, frozenset[int]]] = {}  # by token and digest

    def note(self, token: int, digest: str, ranks: Collection[int]) -> None:
        """Note that ranks have an object as it is when it has a digest."""
        receivers = frozenset(ranks)
        entry = self._without(token, receivers)
        has = entry.get(digest)
        entry[digest] = has | receivers if has else receivers
        self._ranks[token] = entry

    def on(self, token: int, rank: int) -> str | None:
        """Return the digest of what a rank has of an object; ``None`` if it is not known."""
        for digest, ranks in self._ranks.get(token, {}).items():
            if rank in ranks:
                return digest
        return None

    def change(self, token: int, former: str, digest: str) -> None:
        """Note that an object was changed as ranks had changed theirs, whose digest was this."""
        if ranks := self._ranks.get(token, {}).get(former):
            self.note(token, digest, ranks)

    def forget(self, ranks: Collection[int], tokens: Iterable[int] | None = None) -> None:
        """Forget what ranks have: of objects with these tokens, or of all."""
        for token in list(self._ranks if tokens is None else tokens):
            if entry := self._without(token, frozenset(ranks)):
                self._ranks[token] = entry
            else:
                self._ranks.pop(token, None)

    def keep(self, is_kept: Callable[[int], bool]) -> None:
        """Forget what all ranks have of the other objects."""
        self._ranks = {token: each for token, each in self._ranks.items() if is_kept(token)}

    def _without(self, token: int, ranks: frozenset[int]) -> dict[str, frozenset[int]]:
        entry = self._ranks.get(token, {})
        return {digest: rest for digest, each in entry.items() if (rest := each - ranks)}
