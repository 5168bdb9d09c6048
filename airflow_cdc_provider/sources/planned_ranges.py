"""Planned snapshot ranges as JSON: they are stored with the offset while a snapshot is running.

A range is stored as an object: ``kind`` names its class, as the source registers it, and every field of the
class follows under its own name, bytes in hexadecimal. Whoever may set an offset can thereby name ranges, but
can't run code.

An object without ``kind`` has only the fields that differ from the object before it: thousands of ranges with
one filter store it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, get_type_hints

from airflow_cdc_provider.exceptions import OffsetMissing

_KIND = "kind"
_STORABLE = (str, int, bytes)


class PlannedRanges:
    r"""Converts the ranges of one source to JSON and back.

    Args:
        kinds: The classes of its ranges by the names that are stored: data classes or named tuples with
            fields of type ``str``, ``int`` or ``bytes``.

    Example:
        >>> from typing import NamedTuple
        >>> class Page(NamedTuple):
        ...     table: str
        ...     after: bytes
        >>> ranges = PlannedRanges({"page": Page})
        >>> ranges.to_json([Page("shop.orders", b"\x01")])
        ({'kind': 'page', 'table': 'shop.orders', 'after': '01'},)
        >>> stored = ranges.to_json([Page("shop.orders", b"\x01"), Page("shop.orders", b"\x02")])
        >>> stored[1]
        {'after': '02'}
        >>> first, left = ranges.take(stored, 1)
        >>> first
        [Page(table='shop.orders', after=b'\x01')]
        >>> left
        ({'kind': 'page', 'table': 'shop.orders', 'after': '02'},)
    """

    def __init__(self, kinds: Mapping[str, type]) -> None:
        self._kinds = kinds
        self._names = {kind: name for name, kind in kinds.items()}
        self._fields = {name: get_type_hints(kind) for name, kind in kinds.items()}
        for name, fields in self._fields.items():
            if unknown := {field for field, of in fields.items() if of not in _STORABLE}:
                raise TypeError(f"ranges of kind {name} can't be stored: {', '.join(sorted(unknown))}")

    def to_json(self, ranges: Iterable[Any]) -> tuple[dict[str, Any], ...]:
        """Return the objects to store, in the order of the ranges."""
        whole = [self._object(one) for one in ranges]
        return (*whole[:1], *(_difference(one, before) for before, one in pairwise(whole)))

    def take(
        self, stored: Sequence[Mapping[str, Any]], count: int
    ) -> tuple[list[Any], tuple[Mapping[str, Any], ...]]:
        """Rebuild the first ranges of what :meth:`to_json` returned.

        Returns:
            The ranges, and the objects of the others, in the same form.

        Raises:
            OffsetMissing: An object is not a range of this source.
        """
        whole: Any = {}
        ranges = []
        for one in stored[:count]:
            whole = _whole(one, whole)
            ranges.append(self._range(whole))
        left = tuple(stored[count:])
        return ranges, (*(_whole(one, whole) for one in left[:1]), *left[1:])

    def _object(self, one: Any) -> dict[str, Any]:
        name = self._names[type(one)]
        values = {field: getattr(one, field) for field in self._fields[name]}
        shown = {field: v.hex() if isinstance(v, bytes) else v for field, v in values.items()}
        return {_KIND: name, **shown}

    def _range(self, stored: Mapping[str, Any]) -> Any:
        name = stored.get(_KIND) if isinstance(stored, Mapping) else None
        fields = self._fields.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or fields is None or set(stored) != {_KIND, *fields}:
            raise _unreadable(stored, self._fields)
        try:
            values = {field: _value(stored[field], of) for field, of in fields.items()}
        except (TypeError, ValueError) as error:
            raise _unreadable(stored, self._fields) from error
        return self._kinds[name](**values)


def _difference(one: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an object that differ from the one before, all if that is of another kind."""
    if one[_KIND] != before[_KIND]:
        return one
    return {field: value for field, value in one.items() if value != before[field]}


def _whole(one: Any, before: Any) -> Any:
    """Return an object with the fields that it shares with the one before."""
    return {**before, **one} if isinstance(one, Mapping) and _KIND not in one else one


def _value(stored: Any, of: type) -> Any:
    """Return the value of a field, of exactly the field's type."""
    if of is bytes:
        return bytes.fromhex(stored)
    if type(stored) is not of:
        raise TypeError(f"expected {of.__name__}, got: {stored!r}")
    return stored


def _unreadable(stored: Any, kinds: Mapping[str, Mapping[str, type]]) -> OffsetMissing:
    expected = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in sorted(kinds.items()))
    return OffsetMissing(
        "the stored offset holds a snapshot range that can't be read",
        expected=expected or "no ranges, since this source takes no snapshots",
        found=str(stored)[:200],
        remedy="set an offset, or reset the snapshot with: airflow cdc offsets reset",
    )
