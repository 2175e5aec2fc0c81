"""The notebook's side: the objects that it has sent, and which ranks have them."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from jupyter_sky.serialization.object_tokens.digests import DigestsOnRanks
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries, is_referable
from jupyter_sky.serialization.object_tokens.places import Place, places
from jupyter_sky.serialization.object_tokens.tokens import (
    FIRST_OF_RANKS,
    StrongReference,
    Tokens,
    reference,
)

_STARTS = 1 << 28
"""Tokens with which notebooks may begin; each can count further than there are objects."""

_SEARCHED = 1000
"""Parts of a container above which it is bulk data, and no place to look for what a name meant."""

_FORMER = 10
"""Tokens that an object has had, which are sent with it: the last ones are of what ranks have."""

_WATCHED = 100
"""Objects that came back and are looked at each time, so that those no longer used are dropped."""


class SentObjects:
    """The notebook's side: the tokens of objects that it has sent, and which ranks have them.

    It belongs to `NamespaceSync`, whose lock must be held.
    """

    def __init__(self) -> None:
        # Other notebooks, and earlier kernels of this one, give tokens to the same ranks.
        self._next = secrets.randbelow(_STARTS) * (FIRST_OF_RANKS // _STARTS)
        self._tokens: dict[int, tuple[Callable[[], Any], int]] = {}
        # Of objects that were edited, by identity.
        self._former: dict[int, tuple[weakref.ref[Any], list[int]]] = {}
        self._ranks: dict[int, frozenset[int]] = {}
        self._digests = DigestsOnRanks()  # of whole values
        self._in_classes: set[int] = set()
        self._in_names: dict[str, frozenset[int]] = {}
        self._unplaced: set[int] = set()  # not weakly referred to, and their place is not known yet
        self._placed: set[int] = set()
        self._returned: list[int] = []  # the last objects that came back: most are dropped soon
        self._sweep_at = 1000

    def assign_tokens(self, shared: MemoEntries, named: Mapping[str, Any]) -> Tokens:
        """Assign tokens to the objects of a pickle, which has the values of these names.

        Ranks that lack different things get different pickles of an object, with the same token.
        """
        known = {shared[identity][0]: each for identity, each in self.tokens_of(shared).items()}
        first = self._next
        self._next += 1 + max((index for index, _ in shared.values()), default=0)
        former = {
            index: self._former[identity][1]
            for identity, (index, obj) in shared.items()
            if identity in self._former and self._former[identity][0]() is obj
        }
        tokens = Tokens(first, known, former)
        for identity, (index, obj) in shared.items():
            if index not in known or not self._is_found(identity, obj):
                self._record(obj, tokens.of(index))
        self.settle(named)
        return tokens

    def record_sent(
        self, ranks: Iterable[int], shared: MemoEntries, tokens: Tokens
    ) -> dict[int, frozenset[int]]:
        """Record that ranks get the objects of a pickle.

        Returns
        -------
        dict
            The ranks that did not have an object before, by its token.
        """
        self._sweep()
        receivers = frozenset(ranks)
        new: dict[int, frozenset[int]] = {}
        for index, _ in shared.values():
            token = tokens.of(index)
            had = self._ranks.get(token, frozenset())
            self._ranks[token] = had | receivers
            if lacking := receivers - had:
                new[token] = lacking
        return new

    def record_missed(self, new: Mapping[int, frozenset[int]], rank: int) -> None:
        """Record that a rank did not get the objects that were new to it, as by `record_sent`."""
        for token, lacking in new.items():
            if rank in lacking and token in self._ranks:
                self._ranks[token] -= {rank}

    def record_returned(self, objects: Mapping[int, Any], are_named: bool) -> None:
        """Record objects that came back, by token: they stand for those that ranks have.

        Parameters
        ----------
        objects
            The objects.
        are_named
            Whether they are in values of names, with which `settle` is called next. What has no
            name has no place where it could be found.
        """
        self._sweep()
        self._drop_unused(self._returned)
        kept = [identity for identity in self._returned if identity in self._tokens]
        self._returned = kept[-_WATCHED:]
        # What was sent counts most: a rank has a wrapper that is not sent, like that of DDP, too.
        known = {token for _, token in self._tokens.values()}
        for token, obj in sorted(objects.items(), reverse=True):
            if is_referable(obj):
                self._record(obj, token)
                self._returned.append(id(obj))
            elif are_named or token in known:
                self._record(obj, token)

    def record_had(self, name: str, ranks: Iterable[int], shared: MemoEntries) -> None:
        """Record that ranks have the objects of a name that came back, or have theirs in place."""
        self.note_in_name(name, None)
        owners = frozenset(ranks)
        for token in self.tokens_of(shared).values():
            self._ranks[token] = self._ranks.get(token, frozenset()) | owners

    def others(self, memo: MemoEntries) -> dict[int, list[Any]]:
        """Return other objects of the notebook's that stand for the same ones of ranks.

        Parameters
        ----------
        memo
            What came back.

        Returns
        -------
        dict
            The others, by the identity of what came back.
        """
        tokens = self.tokens_of(memo)
        alike: dict[int, list[Any]] = {token: [] for token in tokens.values()}
        for find, token in self._tokens.values() if tokens else ():
            if token in alike and (obj := find()) is not None:
                alike[token].append(obj)
        own = {
            identity: [each for each in alike[token] if each is not memo[identity][1]]
            for identity, token in tokens.items()
        }
        return {identity: others for identity, others in own.items() if others}

    def inherit(self, former: MemoEntries, copies: Mapping[int, Any]) -> None:
        """Record copies of objects, which stand for the same ones of ranks.

        Parameters
        ----------
        former
            The objects.
        copies
            Their copies, by the identity of the objects.
        """
        for identity, (_, obj) in former.items():
            if identity in copies and self._has_token(identity, obj):
                self._record(copies[identity], self._tokens[identity][1])

    def settle(self, named: Mapping[str, Any]) -> None:
        """Let go of objects that are not referred to weakly; they are found by their places.

        Parameters
        ----------
        named
            The values that they are in, by name.
        """
        unplaced = self._unplaced & self._tokens.keys()  # others are no longer used
        found = places(named, unplaced, self._tokens) if unplaced else {}
        for identity in unplaced:
            _, token = self._tokens.pop(identity)
            if identity in found:
                self._tokens[identity] = found[identity], token
                self._placed.add(identity)
        self._unplaced.clear()

    def rebound(
        self, identities: Mapping[str, int], named: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Look for the objects whose places were under names that the notebook has assigned.

        What is there now may be another object, at the same address once the former is gone.

        Parameters
        ----------
        identities
            Those of the values of these names now.
        named
            Returns the notebook's values, by name; called if any object has to be looked for.
        """
        moved: dict[int, Place] = {}
        for identity in list(self._placed):
            place = self._tokens[identity][0] if identity in self._tokens else None
            if not isinstance(place, Place):
                self._placed.discard(identity)
            elif (root := place.root) and root.key in identities:
                if identities[root.key] != root.identity:
                    moved[identity] = place
                elif not place.was_of(place()):
                    del self._tokens[identity]
        found = places(named(), moved, largest=_SEARCHED) if moved else {}
        for identity, place in moved.items():
            _, token = self._tokens.pop(identity)
            if identity in found and place.was_of(found[identity]()):
                self._tokens[identity] = found[identity], token

    def _record(self, obj: Any, token: int) -> None:
        self._tokens[id(obj)] = reference(obj), token
        if not is_referable(obj):
            self._unplaced.add(id(obj))

    def forget(self, rank: int) -> None:
        """Record that a rank no longer has any of them."""
        self._ranks = {token: ranks - {rank} for token, ranks in self._ranks.items()}
        self._digests.forget([rank])

    def known_to(self, rank: int, shared: MemoEntries) -> dict[int, int]:
        """Return the tokens of the objects that a rank has, by identity."""
        tokens = self.tokens_of(shared)
        return {key: each for key, each in tokens.items() if rank in self._ranks.get(each, ())}

    def tokens_of(self, shared: MemoEntries) -> dict[int, int]:
        """Return the tokens of objects, by identity, of those that have one."""
        return {
            identity: self._tokens[identity][1]
            for identity, (_, obj) in shared.items()
            if self._has_token(identity, obj)
        }

    def token_of(self, obj: Any) -> int | None:
        """Return the token of an object; ``None`` if it has none."""
        return self._tokens[id(obj)][1] if self._has_token(id(obj), obj) else None

    def drop(self, tokens: Collection[int], changed: Collection[int] = ()) -> None:
        """Forget objects: what ranks have in their place is not what they are any more.

        Parameters
        ----------
        tokens
            Their tokens.
        changed
            Those of objects that are not forgotten, but of which ranks have not the same either.
        """
        self._note_former(tokens)
        self._tokens = {key: each for key, each in self._tokens.items() if each[1] not in tokens}
        # Whatever holds them is not what ranks have either.
        gone = {*tokens, *changed}
        without = [inside for inside in self._in_names.values() if inside.isdisjoint(gone)]
        same = frozenset[int]().union(*without)
        self._digests.keep(lambda token: token in same)

    def _note_former(self, tokens: Collection[int]) -> None:
        """Note the tokens of objects that get others: ranks may still have what these stand for."""
        self._former = {key: each for key, each in self._former.items() if each[0]() is not None}
        for identity, (find, token) in self._tokens.items():
            if token in tokens and isinstance(find, weakref.ref) and (obj := find()) is not None:
                _, others = self._former.get(identity, (find, []))
                self._former[identity] = weakref.ref(obj), [token, *others[: _FORMER - 1]]

    def note_digests(
        self, digests: Iterable[tuple[int, str | None]], ranks: Collection[int]
    ) -> list[int]:
        """Note the digests of values of which ranks have the same; they may change it themselves.

        Parameters
        ----------
        digests
            The identities of the values, each with its digest; ``None`` if it has none.
        ranks
            The ranks.

        Returns
        -------
        list of int
            The tokens of the values that have one.
        """
        found = [
            (self._tokens[identity][1], digest)
            for identity, digest in digests
            if digest and identity in self._tokens
        ]
        for token, digest in found:
            self._digests.note(token, digest, ranks)
        return [token for token, _ in found]

    def lose_digests(self, tokens: Iterable[int], ranks: Collection[int]) -> None:
        """Note that it is not known what ranks have of some objects: they may not have got it."""
        self._digests.forget(ranks, tokens)

    def change_digest(self, value: Any, former: str, digest: str) -> None:
        """Note that a value, which had a digest, was changed as ranks had changed theirs."""
        if (token := self.token_of(value)) is not None:
            self._digests.change(token, former, digest)

    def digest_on(self, rank: int, value: Any) -> str | None:
        """Return the digest that a value had when a rank was sent it, under whatever name."""
        token = self.token_of(value)
        if token is None or rank not in self._ranks.get(token, ()):
            return None
        return self._digests.on(token, rank)

    def note_in_name(self, name: str, tokens: Iterable[int] | None) -> None:
        """Note the objects in the value of a name when it was sent; ``None`` if not known."""
        if tokens is None:
            self._in_names.pop(name, None)
        else:
            self._in_names[name] = frozenset(tokens)

    def may_be_in(self, name: str, tokens: Collection[int]) -> bool:
        """Return whether any of these objects may be in the value of a name that ranks have.

        It is not, if it was put there since that was sent: then that has changed, and is sent again
        when it is needed.
        """
        return name not in self._in_names or not self._in_names[name].isdisjoint(tokens)

    def are_in_class(self, kind: type, tokens: Collection[int]) -> bool:
        """Return whether any of these objects may be a class, or in it."""
        return self.token_of(kind) in tokens or not self._in_classes.isdisjoint(tokens)

    def note_in_classes(self, tokens: Iterable[int]) -> None:
        """Note that objects are parts of classes, which few are."""
        self._in_classes.update(tokens)

    def any_in_classes(self, shared: MemoEntries) -> bool:
        """Return whether any of the objects was sent as part of a class."""
        return bool(self._in_classes) and any(
            self._tokens[identity][1] in self._in_classes
            for identity, (_, obj) in shared.items()
            if self._has_token(identity, obj)
        )

    def _is_found(self, identity: int, obj: Any) -> bool:
        """Return whether an object is referred to as it is now: it may have moved, or changed."""
        find, _ = self._tokens[identity]
        if isinstance(find, StrongReference) and not is_referable(obj):
            return False  # it would keep alive what was put into it since
        return find() is obj and (not isinstance(find, Place) or find.was_of(obj))

    def _has_token(self, identity: int, obj: Any) -> bool:
        if identity not in self._tokens:
            return False
        find, _ = self._tokens[identity]
        return find() is obj or (isinstance(find, Place) and find.was_of(obj))

    def _sweep(self) -> None:
        """Drop what is unused now and then, so that looking for it costs little."""
        if len(self._tokens) <= self._sweep_at:
            return
        self._drop_unused(list(self._tokens))
        used = {token for _, token in self._tokens.values()}
        self._ranks = {token: ranks for token, ranks in self._ranks.items() if token in used}
        self._digests.keep(lambda token: token in used)
        self._sweep_at = 1000 + 2 * len(self._tokens)

    def _drop_unused(self, identities: Iterable[int]) -> None:
        """Drop the tokens of objects that are gone, or that are kept alive only by this table."""
        for identity in identities:
            if identity in self._tokens:
                held = self._tokens[identity][0]
                gone = held() is None
                if gone or (isinstance(held, StrongReference) and held.is_only_one()):
                    del self._tokens[identity]
