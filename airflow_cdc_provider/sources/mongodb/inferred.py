"""Inferred columns: what fields documents turn out to have, as columns of a mirror that grows with them.

Each top-level field gets a column of its own name, with a type by the BSON types that were seen in it:

=========== ========================================== ====================================================
family      BSON types                                 column
=========== ========================================== ====================================================
boolean     bool                                       boolean
number      int; long; double; decimal                 int; bigint with a long; double with a double;
                                                       decimal(38,18) with a decimal
text        string, symbol, javascript, objectId, uuid string
binary      binData (and uuid)                         binary
date        date                                       timestamp
any         all others, documents and arrays too       string: canonical Extended JSON
=========== ========================================== ====================================================

The family is that of most of the values in the first batch that has some, and stays. A value that its column
doesn't hold exactly stands in the column :data:`REST`, under its field's name: values of other families,
numbers that the type can't hold, and fields without a column (names that not every engine takes, more fields
than are allowed). So each value is in its column or in the rest.

A type only grows. ``int`` to ``bigint`` is a change of metadata; any other growth replaces the column and
writes all rows anew from the documents that the mirror keeps as BSON. So a mirror shows what it would show if
all its documents had been known from the beginning, but for the choice of a family.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from airflow_cdc_provider.sources.mongodb import bson
from airflow_cdc_provider.sources.mongodb.columns import DeclaredColumn
from airflow_cdc_provider.sources.mongodb.field_tally import UUID, FieldCount

REST: Final = "_rest"
"""Column of what no other column holds: a document in canonical Extended JSON, null for nothing."""

TYPE_NAMES: Final[Mapping[int, str]] = {
    bson.DOUBLE: "double",
    bson.STRING: "string",
    bson.DOCUMENT: "object",
    bson.ARRAY: "array",
    bson.BINARY: "binData",
    UUID: "uuid",
    bson.UNDEFINED: "undefined",
    bson.OBJECT_ID: "objectId",
    bson.BOOLEAN: "bool",
    bson.DATE: "date",
    bson.NULL: "null",
    bson.REGEX: "regex",
    bson.DB_POINTER: "dbPointer",
    bson.CODE: "javascript",
    bson.SYMBOL: "symbol",
    bson.CODE_WITH_SCOPE: "javascriptWithScope",
    bson.INT32: "int",
    bson.TIMESTAMP: "timestamp",
    bson.INT64: "long",
    bson.DECIMAL128: "decimal",
    bson.MIN_KEY: "minKey",
    bson.MAX_KEY: "maxKey",
}
"""MongoDB's own names of types, as ``$type`` takes them; and ``uuid``."""

NOTHING: Final = frozenset({"null", "undefined"})
"""Types of values that any column shows as null."""

Family = Literal["boolean", "number", "text", "binary", "date", "any"]

_FAMILIES: Final[Mapping[Family, Sequence[str]]] = {
    "number": ("int", "long", "double", "decimal"),
    "text": ("string", "symbol", "javascript", "objectId", "uuid"),
    "date": ("date",),
    "boolean": ("bool",),
    "binary": ("binData",),
}
_OTHERS: Final[Family] = "any"
_HELD_TOO: Final[Mapping[Family, Sequence[str]]] = {"binary": ("uuid", "objectId")}
_COLUMNS: Final[Mapping[Family, str]] = {
    "text": "string",
    "date": "timestamp",
    "boolean": "boolean",
    "binary": "binary",
    "any": "json",
}
_NUMBERS: Final = {"int": "int", "long": "bigint", "double": "double", "decimal": "decimal(38,18)"}
_NAME: Final = re.compile(r"(?!(?i:_cdc))[\w$@#-]([\w$@# -]{0,126}[\w$@#-])?")


def family_of(type_name: str) -> Family:
    """Return the family that values of a type belong to."""
    return next((family for family, types in _FAMILIES.items() if type_name in types), _OTHERS)


@dataclass(frozen=True)
class InferredField:
    """A field that has a column.

    Args:
        name: Of the field and of the column.
        family: Which values the column is for.
        types: Names of all BSON types that were seen, sorted.
    """

    name: str
    family: Family
    types: tuple[str, ...]

    @property
    def column(self) -> DeclaredColumn:
        """The column, as if it were declared."""
        type_name = _COLUMNS.get(self.family, "int")
        if self.family == "number":
            for name, wider in _NUMBERS.items():
                type_name = wider if name in self.types else type_name
        return DeclaredColumn(self.name, (self.name,), type_name)

    @property
    def strays(self) -> tuple[str, ...]:
        """Types that were seen and belong to another family: their values stand in the rest."""
        if self.family == _OTHERS:
            return ()
        held = {*_FAMILIES[self.family], *_HELD_TOO.get(self.family, ()), *NOTHING}
        return tuple(name for name in self.types if name not in held)


@dataclass(frozen=True)
class InferredColumns:
    """The fields of a collection that have columns, and what a mirror must still do to show them.

    Args:
        fields: In the order of the columns.
        left_out: Fields were seen that found no room.
        replaced: Columns whose type changed beyond widening: they begin anew.
        revisit: Which rows must be written again: none, those with something in the rest, or all.
        declared: The columns that stand beside them: name and declaration.
    """

    fields: tuple[InferredField, ...] = ()
    left_out: bool = False
    replaced: frozenset[str] = frozenset()
    revisit: Literal["", "rest", "all"] = field(default="")
    declared: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_memory(cls, memory: Mapping[str, Any]) -> InferredColumns:
        """Read what :meth:`to_memory` gave."""
        return cls(
            tuple(InferredField(name, family, tuple(types)) for name, family, types in memory["fields"]),
            memory["left_out"],
            frozenset(memory.get("replaced", ())),
            memory.get("revisit", ""),
            tuple((name, text) for name, text in memory["declared"]),
        )

    def to_memory(self) -> dict[str, Any]:
        """Return it as plain data."""
        found: dict[str, Any] = {
            "v": 1,
            "fields": [[one.name, one.family, list(one.types)] for one in self.fields],
            "left_out": self.left_out,
            "declared": [list(one) for one in self.declared],
        }
        if self.replaced:
            found["replaced"] = sorted(self.replaced)
        if self.revisit:
            found["revisit"] = self.revisit
        return found

    def done(self) -> InferredColumns:
        """Return what is left when all rows show these columns."""
        return replace(self, replaced=frozenset(), revisit="")

    def beside(self, declared: Mapping[str, str]) -> InferredColumns:
        """Return these columns beside others that are declared now: those take their names.

        What was declared otherwise, or is no more, begins anew; a field that was shown by it stands in the
        rest until a change next has it.
        """
        now = tuple(sorted(declared.items()))
        if now == self.declared:
            return self
        names = {name.lower() for name in declared}
        dropped = {one.name for one in self.fields if one.name.lower() in names}
        outdated = {name for name, text in self.declared if declared.get(name) != text}
        return replace(
            self,
            fields=tuple(one for one in self.fields if one.name not in dropped),
            left_out=self.left_out or bool(outdated),
            replaced=self.replaced | dropped | outdated,
            revisit="all",
            declared=now,
        )

    def learn(
        self, found: Iterable[FieldCount], taken: Collection[str], most: int, *, whole: bool = True
    ) -> InferredColumns:
        """Take in fields of further documents.

        Args:
            found: Their top-level fields; several counts of one are added up.
            taken: Names that columns must not have, whatever their case.
            most: How many columns there may be.
            whole: Whether there are no further fields.
        """
        counts: dict[str, dict[str, int]] = {}
        places: dict[str, int] = {}
        for one in found:
            (name,) = one.path
            of_type = counts.setdefault(name, {})
            type_name = TYPE_NAMES[one.kind]
            of_type[type_name] = of_type.get(type_name, 0) + one.count
            places[name] = min(places.get(name, one.place), one.place)
        known = {one.name: one for one in self.fields}
        fields, replaced = [], set(self.replaced)
        for old in self.fields:
            new = replace(old, types=tuple(sorted({*old.types, *counts.get(old.name, ())})))
            before, after = old.column.type_name, new.column.type_name
            if before != after and (before, after) != ("int", "bigint"):
                replaced.add(old.name)
            fields.append(new)
        used = {name.lower() for name in (*taken, *known)}
        left_out = self.left_out or not whole
        for name in sorted(counts.keys() - known.keys(), key=lambda name: (places[name], name)):
            family = _family_of_most(counts[name])
            if family is None:
                continue
            if name.lower() in used or not _NAME.fullmatch(name):
                continue
            if len(fields) >= most:
                left_out = True
                continue
            used.add(name.lower())
            fields.append(InferredField(name, family, tuple(sorted(counts[name]))))
        revisit = self.revisit
        if replaced:
            revisit = "all"
        elif self.left_out and len(fields) > len(known):
            revisit = revisit or "rest"
        return replace(
            self, fields=tuple(fields), left_out=left_out, replaced=frozenset(replaced), revisit=revisit
        )


def _family_of_most(counts: Mapping[str, int]) -> Family | None:
    """Return the family of most values; of as many the first of the table, None if there are only nulls."""
    sums: dict[Family, int] = {}
    for type_name, count in counts.items():
        if type_name not in NOTHING:
            family = family_of(type_name)
            sums[family] = sums.get(family, 0) + count
    order: list[Family] = [*_FAMILIES, _OTHERS]
    return min(sums, key=lambda family: (-sums[family], order.index(family)), default=None)
