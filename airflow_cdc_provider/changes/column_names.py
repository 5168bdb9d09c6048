"""Names of a mirror's columns: the source's own, but for names that engines confuse.

Sources allow names that lakes don't. Spark and DuckDB compare names case-insensitively. Iceberg addresses
nested columns by dotted paths, so ``a.b`` excludes a column ``a``, and writes data files with names
in which all characters but letters, digits and ``_`` are escaped. It also has metadata columns of its own.

Of names that clash, the oldest one is kept. A later one gets ``_`` for its dots if that suffices, else
``__2``, ``__3`` and so on at its end. A name that begins with ``_cdc`` gets an ``x`` before it.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

RESERVED: Final = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)
"""Iceberg's metadata columns: no column of a mirror has such a name."""

PREFIX: Final = "_cdc"
"""How names of this provider's own columns begin: no column of a source has such a name in a mirror."""


def folded(name: str) -> str:
    """Return a text that is equal for names that differ only by case, by any engine's rules."""
    upper = unicodedata.normalize("NFKC", name).upper()
    return unicodedata.normalize("NFKC", upper.casefold()).replace("\u0307", "")


class TakenNames:
    """Names that are taken, in the forms in which engines compare them.

    Args:
        names: The names.
        prefix: How no name may begin, in any case; empty for no rule.
    """

    def __init__(self, names: Iterable[str] = (), prefix: str = "") -> None:
        self._prefix = prefix
        self._written: set[str] = set()
        self._paths: set[str] = set()
        self._parents: set[str] = set()
        self._last_numbers: defaultdict[str, int] = defaultdict(lambda: 1)
        for name in names:
            self.take(name)

    def clashes(self, name: str) -> bool:
        """Return whether a name is empty, reserved, or can be taken for another one."""
        path = folded(name)
        if not name or (self._prefix and path.startswith(self._prefix)) or _written(path) in self._written:
            return True
        return path in self._parents or not self._paths.isdisjoint(_parents(path))

    def take(self, name: str) -> None:
        """Add a name."""
        path = folded(name)
        self._written.add(_written(path))
        self._paths.add(path)
        self._parents.update(_parents(path))

    def add(self, name: str) -> str:
        """Add a name, or the first one instead of it that doesn't clash; return it."""
        found = name
        if self.clashes(name):
            stem = name.replace(".", "_") or "_"
            found = stem = f"x{stem}" if self._prefix and folded(stem).startswith(self._prefix) else stem
            while self.clashes(found):
                # No name is given back, so that no number is tried twice.
                self._last_numbers[folded(stem)] += 1
                found = f"{stem}__{self._last_numbers[folded(stem)]}"
        self.take(found)
        return found


def column_names(
    names: Iterable[str], kept: Mapping[str, str] | None = None, reserved: Iterable[str] = ()
) -> dict[str, str]:
    """Return the names that a table's columns have in the mirror.

    Args:
        names: The source's names, oldest first.
        kept: Those that a mirror has already, by name at the source.
        reserved: Names that none of the others gets.
    """
    own = list(names)
    given = {name: kept[name] for name in own if name in kept} if kept else {}
    taken = TakenNames([*RESERVED, *reserved, *given.values()], PREFIX)
    return {name: given[name] if name in given else taken.add(name) for name in own}


def distinct_fields(names: Iterable[str]) -> list[str]:
    """Return the names that the fields of a struct have in the lake; names are in the order of the fields."""
    taken = TakenNames()
    return [taken.add(name) for name in names]


def clash(names: Iterable[str]) -> bool:
    """Return whether fields of these names can't be in one struct."""
    own = list(names)
    return distinct_fields(own) != own


def clashing_column(columns: pa.Schema) -> str:
    """Return the path of a column or field that has another name in a lake; empty for none."""
    renamed = [name for name, distinct in column_names(columns.names).items() if name != distinct]
    return renamed[0] if renamed else _clashing_field(columns, "")


def _clashing_field(fields: Iterable[pa.Field], parent: str) -> str:
    own = list(fields)
    names = [field.name for field in own]
    for name, distinct in zip(names, distinct_fields(names), strict=True):
        if name != distinct:
            return parent + name
    for field in own:
        inner = [field.type.field(i) for i in range(field.type.num_fields)]
        if inner and (found := _clashing_field(inner, f"{parent}{field.name}.")):
            return found
    return ""


def _parents(path: str) -> list[str]:
    return [path[:at] for at, character in enumerate(path) if character == "."]


def _written(path: str) -> str:
    """Return a folded name as Iceberg writes it to data files (``AvroSchemaUtil.makeCompatibleName``)."""
    escaped = "".join(c if c.isalpha() or c.isdecimal() or c == "_" else f"_x{ord(c):x}" for c in path)
    return f"_{escaped}" if escaped[:1].isdecimal() else escaped
