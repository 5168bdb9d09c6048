"""Inferred columns: the top-level fields of documents as columns of a mirror, which evolves with them.

Each top-level field gets a column, with a type for the types of its values. The column has the field's name
unless engines could take it for another one (:mod:`.column_names`); it keeps its name for ever. Types have
the names that MongoDB uses for ``$type``, plus ``uuid``; the values of JSON have a few of them:

=========== ========================================== ====================================================
family      types                                      column
=========== ========================================== ====================================================
boolean     bool                                       boolean
number      int; long; double; decimal                 int; bigint with a long; double with a double;
                                                       decimal(38,18) with a decimal
text        string, symbol, javascript, objectId, uuid string
binary      binData (and uuid)                         binary
date        date                                       timestamp
any         all others, documents and arrays too       string: canonical Extended JSON
=========== ========================================== ====================================================

The family is that of the majority of values in the first batch with the field, and never changes. A value
that its column can't hold exactly is stored in the column :data:`REST`, under its field's name: values of
other families, numbers that the type can't hold, and fields without a column (names that some catalogs
reject, more fields than the limit). So each value is in its column or in the rest.

Types are only widened. ``int`` to ``bigint`` is a change of metadata; any other widening replaces the column
and rewrites all rows from the documents that the mirror stores as BSON. So, except for the choice of
families, a mirror is the same as if all its documents had been known from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import pyarrow as pa

from airflow_cdc_provider.changes.column_names import TakenNames, column_names

REST: Final = "_rest"
"""Column for the remaining values: a document in canonical Extended JSON, null if there are none."""

FIELD_COUNTS: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("type", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("first_index", pa.int64()),
        pa.field("whole", pa.bool_()),
    ]
)
"""Fields of documents: name, name of the type, number of occurrences, lowest index in a document; and whether
the batch lists all fields."""

NOTHING: Final = frozenset({"null", "undefined"})
"""Types whose values are null in any column."""

Family = Literal["boolean", "number", "text", "binary", "date", "any"]

_FAMILIES: Final[Mapping[Family, Sequence[str]]] = {
    "number": ("int", "long", "double", "decimal"),
    "text": ("string", "symbol", "javascript", "objectId", "uuid"),
    "date": ("date",),
    "boolean": ("bool",),
    "binary": ("binData",),
}
_OTHERS: Final[Family] = "any"
_ALSO_HELD: Final[Mapping[Family, Sequence[str]]] = {"binary": ("uuid", "objectId")}
_COLUMNS: Final[Mapping[Family, str]] = {
    "text": "string",
    "date": "timestamp",
    "boolean": "boolean",
    "binary": "binary",
    "any": "json",
}
_NUMBERS: Final = {"int": "int", "long": "bigint", "double": "double", "decimal": "decimal(38,18)"}
_ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "decimal(38,18)": pa.decimal128(38, 18),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
_LONGEST_NAME: Final = 128
"""Catalogs limit the names of columns, Glue to 255 characters; keys that are data can be longer."""
_LAKE_NAMES: Final = "lake_names"


def counts_batch(counts: Iterable[tuple[str, str, int, int]], *, whole: bool) -> pa.RecordBatch:
    """Return counts, in the order of :data:`FIELD_COUNTS`, as a batch with that schema."""
    rows = [dict(zip(FIELD_COUNTS.names, (*one, whole), strict=True)) for one in counts]
    return pa.RecordBatch.from_pylist(rows, schema=FIELD_COUNTS)


@dataclass(frozen=True)
class InferredField:
    """A field with a column.

    Args:
        name: Name of the field.
        family: The column's family of types.
        types: Names of all types of the field's values, sorted.
        column: Name of the column.
    """

    name: str
    family: Family
    types: tuple[str, ...]
    column: str

    @property
    def type_name(self) -> str:
        """Name of the column's type."""
        name = _COLUMNS.get(self.family, "int")
        if self.family == "number":
            for of_values, wider in _NUMBERS.items():
                name = wider if of_values in self.types else name
        return name

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the column."""
        return _ARROW_TYPES[self.type_name]

    @property
    def strays(self) -> tuple[str, ...]:
        """Types of values that belong to another family: these values are stored in the rest."""
        if self.family == _OTHERS:
            return ()
        held = {*_FAMILIES[self.family], *_ALSO_HELD.get(self.family, ()), *NOTHING}
        return tuple(name for name in self.types if name not in held)


@dataclass(frozen=True)
class InferredColumns:
    """The fields of a collection with columns, and pending changes of the mirror.

    Args:
        fields: The fields, in the order of the columns.
        left_out: Whether fields have no column because of the limit.
        replaced: Columns whose type changed beyond widening: they are re-created.
        rows_to_rewrite: Which rows to rewrite: none, those with values in the rest, or all.
        declared: The declared columns in addition to these: name and declaration.
    """

    fields: tuple[InferredField, ...] = ()
    left_out: bool = False
    replaced: frozenset[str] = frozenset()
    rows_to_rewrite: Literal["", "rest", "all"] = field(default="")
    declared: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_memory(cls, memory: Mapping[str, Any]) -> InferredColumns:
        """Create from the result of :meth:`to_memory`."""
        names = memory.get(_LAKE_NAMES, {})
        return cls(
            tuple(
                InferredField(name, family, tuple(types), names.get(name, name))
                for name, family, types in memory["fields"]
            ),
            memory["left_out"],
            frozenset(memory.get("replaced", ())),
            memory.get("rows_to_rewrite", ""),
            tuple((name, text) for name, text in memory["declared"]),
        )

    def to_memory(self) -> dict[str, Any]:
        """Return the columns as JSON-serializable data."""
        found: dict[str, Any] = {
            "v": 1,
            "fields": [[one.name, one.family, list(one.types)] for one in self.fields],
            "left_out": self.left_out,
            "declared": [list(one) for one in self.declared],
        }
        if names := {one.name: one.column for one in self.fields if one.column != one.name}:
            found[_LAKE_NAMES] = names
        if self.replaced:
            found["replaced"] = sorted(self.replaced)
        if self.rows_to_rewrite:
            found["rows_to_rewrite"] = self.rows_to_rewrite
        return found

    def applied(self) -> InferredColumns:
        """Return the columns without pending changes, for when all rows have them."""
        return replace(self, replaced=frozenset(), rows_to_rewrite="")

    def with_declared(self, declared: Mapping[str, str], reserved: Iterable[str]) -> InferredColumns:
        """Return these columns for a new set of declared columns.

        A field that a declared column holds has no inferred one. An inferred column gets another name if a
        declared one has its name. Columns whose declaration changed or was removed are re-created; a field of
        such a column is stored in the rest until the next change with that field.

        Args:
            declared: Name and declaration of each declared column.
            reserved: Names that inferred columns don't get.
        """
        now = tuple(sorted(declared.items()))
        if now == self.declared:
            return self
        held = _held(now)
        left = [one for one in self.fields if one.name not in held]
        taken = TakenNames(declared)
        kept = {one.name: one.column for one in left if not taken.clashes(one.column)}
        names = column_names((one.name for one in left), kept, [*reserved, *declared])
        dropped = {one.column for one in self.fields if one.name in held or one.name not in kept}
        outdated = {name for name, text in self.declared if declared.get(name) != text}
        return replace(
            self,
            fields=tuple(replace(one, column=names[one.name]) for one in left),
            left_out=self.left_out or bool(outdated),
            replaced=self.replaced | dropped | outdated,
            rows_to_rewrite="all",
            declared=now,
        )

    def learn(
        self, counts: pa.Table, reserved: Iterable[str], most: int, hidden: Set[str] = frozenset()
    ) -> InferredColumns:
        """Return the columns extended by the fields of further documents.

        Args:
            counts: Counts of their top-level fields, of :data:`FIELD_COUNTS`; those of one field are summed.
            reserved: Names that inferred columns don't get, in addition to those of declared columns.
            most: Maximum number of columns.
            hidden: Fields that get no column, in addition to those that declared columns hold.
        """
        sums: dict[str, dict[str, int]] = {}
        first_indexes: dict[str, int] = {}
        whole = True
        for row in counts.to_pylist():
            name, type_name = row["name"], row["type"]
            of_type = sums.setdefault(name, {})
            of_type[type_name] = of_type.get(type_name, 0) + row["count"]
            first_indexes[name] = min(first_indexes.get(name, row["first_index"]), row["first_index"])
            whole = whole and row["whole"]
        known = {one.name: one for one in self.fields}
        fields, replaced = [], set(self.replaced)
        for old in self.fields:
            new = replace(old, types=tuple(sorted({*old.types, *sums.get(old.name, ())})))
            before, after = old.type_name, new.type_name
            if before != after and (before, after) != ("int", "bigint"):
                replaced.add(old.column)
            fields.append(new)
        left_out = self.left_out or not whole
        hidden = hidden | _held(self.declared)
        new_names = sorted(sums.keys() - known.keys() - hidden, key=lambda name: (first_indexes[name], name))
        found = [one for name in new_names if _fits_catalogs(name) and (one := infer_field(name, sums[name]))]
        room = max(most - len(fields), 0)
        left_out = left_out or len(found) > room
        fields += found[:room]
        names = column_names(
            (one.name for one in fields),
            {one.name: one.column for one in self.fields},
            [*reserved, *(name for name, _ in self.declared)],
        )
        rows_to_rewrite = self.rows_to_rewrite
        if replaced:
            rows_to_rewrite = "all"
        elif self.left_out and len(fields) > len(known):
            rows_to_rewrite = rows_to_rewrite or "rest"
        return replace(
            self,
            fields=tuple(replace(one, column=names[one.name]) for one in fields),
            left_out=left_out,
            replaced=frozenset(replaced),
            rows_to_rewrite=rows_to_rewrite,
        )

    def findings(self) -> list[str]:
        """Return a message for each field whose values are of several families."""
        return [
            f"{one.column} is {one.type_name}; values of type {', '.join(one.strays)} are in {REST}"
            for one in self.fields
            if one.strays
        ]


def infer_field(name: str, counts: Mapping[str, int]) -> InferredField | None:
    """Return a field with the family of most values, in a column of its name; None if all values are null.

    Args:
        name: The field's name.
        counts: Number of values of each type.
    """
    sums: dict[Family, int] = {}
    for type_name, count in counts.items():
        if type_name not in NOTHING:
            family = next((family for family, types in _FAMILIES.items() if type_name in types), _OTHERS)
            sums[family] = sums.get(family, 0) + count
    if not sums:
        return None
    order: list[Family] = [*_FAMILIES, _OTHERS]  # the first one on a tie
    family = min(sums, key=lambda family: (-sums[family], order.index(family)))
    return InferredField(name, family, tuple(sorted(counts)), name)


def _held(declared: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the fields that declared columns hold as a whole; a path with dots leads into one."""
    paths = (text.strip().partition(" ")[0] for _, text in declared)
    return frozenset(path for path in paths if "." not in path)


def _fits_catalogs(name: str) -> bool:
    r"""Return whether a column may have a name: ``\0`` ends names in C, U+FFFD replaces what isn't UTF-8."""
    return len(name) <= _LONGEST_NAME and not {"\0", "\ufffd"} & set(name)
