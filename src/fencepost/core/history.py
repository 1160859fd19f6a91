"""An append-only sequence that is a value: appending gives a new one and changes none that exists.

The newest version shares its storage with the older ones, so that a journal of any length is folded at the same
cost per entry; only a *branch* (appending to a version that is not the newest) copies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from msgspec import Struct, field

T = TypeVar("T")
R = TypeVar("R")


class Log(Struct, Generic[T], frozen=True, gc=False, eq=False):
    """An immutable sequence of items, each findable by the key it was appended under."""

    _items: list[T] = field(default_factory=list)
    _where: dict[Hashable, int | list[int]] = field(default_factory=dict)  # one place, or several
    _length: int = 0
    _made: dict[Callable[[Any], Any], list[Any]] = field(default_factory=dict)  # what `rendered` made so far

    def append(self, item: T, key: Hashable = None) -> Log[T]:
        """This sequence and one more item, found under `key` unless that is None."""
        items, length = self._items, self._length
        if len(items) != length:
            return self._branch().append(item, key)
        items.append(item)
        where = self._where
        if key is not None:
            at = where.setdefault(key, length)
            if at is not length:
                if isinstance(at, int):
                    where[key] = [at, length]
                else:
                    at.append(length)
        return Log(items, where, length + 1, self._made)

    def _branch(self) -> Log[T]:
        """The same sequence with storage of its own."""
        made = {render: rendered[: self._length] for render, rendered in self._made.items()}
        return Log(self._items[: self._length], self._places(), self._length, made)

    def _places(self) -> dict[Hashable, int | list[int]]:
        """Where the items of this version are, without those of newer ones."""
        return {key: kept for key in self._where if (kept := self.positions(key))}

    def replaced(self, index: int, item: T) -> Log[T]:
        """This sequence with another item in one place, under the same key; it copies the sequence."""
        items = self._items[: self._length]
        items[index] = item
        made = {render: rendered[: self._length] for render, rendered in self._made.items()}
        for render, rendered in made.items():
            if index < len(rendered):
                rendered[index] = render(item)
        return Log(items, self._places(), self._length, made)

    def rendered(self, render: Callable[[T], R]) -> list[R]:
        """What `render` makes of each item, in order; each item is rendered once for all versions.

        `render` is pure, and the same function every time: what it made is kept as long as the sequence.
        """
        made = self._made.setdefault(render, [])
        made.extend([render(item) for item in self._items[len(made) : self._length]])
        return made[: self._length]

    def positions(self, key: Hashable) -> list[int]:
        """Where items with this key are, oldest first."""
        at = self._where.get(key)
        if at is None:
            return []
        return [i for i in ([at] if isinstance(at, int) else at) if i < self._length]

    def has(self, key: Hashable) -> bool:
        """Whether any item was appended under the key."""
        at = self._where.get(key)
        if at is None:
            return False
        return (at if isinstance(at, int) else at[0]) < self._length

    def find(self, key: Hashable) -> T | None:
        """The newest item under the key, or None."""
        at = self.positions(key)
        return self._items[at[-1]] if at else None

    def __contains__(self, item: object) -> bool:
        return item in self._items[: self._length]

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._items[: self._length])

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        items = self._items
        for i in range(self._length):
            yield items[i]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return tuple(self._items[: self._length][index])
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"index {index} of a log of {self._length}")
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Log) and self._length == other._length and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Log({list(self)!r})"


Sequence.register(Log)
