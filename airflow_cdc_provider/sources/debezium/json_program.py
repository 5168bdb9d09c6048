"""Programs that convert binary values to JSON: a schema compiled to tables that kernels interpret.

A node defines how a value is read; its edges define its parts and the text before each part::

    nodes   kind | argument | first edge | edges          one row per node; the root is last
    edges   child | start of its lead | end | ...         leads are texts such as {"id": or ,"name":

After its lead an edge has the fields for formats with numbered parts: :class:`Part`.

Several parents may share a node, but a node can't contain itself: a recursive schema has no columns and is
rejected. :data:`DEEPEST` and :data:`LARGEST` limit the cost of an untrusted schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Ints

DEEPEST: Final = 64
"""Maximum nesting depth of nodes."""
LARGEST: Final = 20_000
"""Maximum number of values of a schema, each counted as often as it can occur in a row."""

Table = Ints


@dataclass(frozen=True, eq=False)
class Program:
    """The input of kernels: the tables above and the texts of all leads."""

    nodes: Table
    edges: Table
    texts: Bytes


@dataclass(frozen=True)
class CompiledNode:
    """A compiled node with its Connect schema.

    Args:
        node: Its index.
        schema: The Connect schema in the JSON converter's format.
        size: Number of its values.
        depth: Nesting depth of its nodes.
    """

    node: int
    schema: Mapping[str, Any]
    size: int = 1
    depth: int = 1


@dataclass(frozen=True)
class Part:
    """A part of a node.

    Args:
        child: Its node; None for null, and for a part that is only a lead.
        lead: The text before it.
        number: Its field number.
        repeated: :data:`LIST` or :data:`OBJECT` for a repeated field, whose values are combined; else 0.
        choice: Number of its choice, of which at most one part is present; 0 for none.
        absent: The text for a missing part.
    """

    child: CompiledNode | None
    lead: bytes
    number: int = 0
    repeated: int = 0
    choice: int = 0
    absent: bytes = b"null"


LIST: Final = 1
OBJECT: Final = 2

LEAD_START: Final = 1
LEAD_END: Final = 2
NUMBER: Final = 3
REPEATED: Final = 4
CHOICE: Final = 5
ABSENT_START: Final = 6
ABSENT_END: Final = 7
"""Columns of edges."""
_EDGE_COLUMNS: Final = 8


@dataclass
class ProgramBuilder:
    """Collects nodes, children before their parents."""

    nodes: list[tuple[int, int, int, int]] = field(default_factory=list)
    edges: list[tuple[int, ...]] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)

    def add(
        self, kind: int, schema: Mapping[str, Any], argument: int = 0, parts: Sequence[Part] = ()
    ) -> CompiledNode:
        """Add a node.

        Args:
            kind: A kind constant of its format.
            schema: Its Connect schema.
            argument: The argument of the kind.
            parts: Its parts.

        Raises:
            ValueError: The schema is too large or too deep.
        """
        inside = [part.child for part in parts if part.child is not None]
        size = 1 + sum(child.size for child in inside)
        depth = 1 + max((child.depth for child in inside), default=0)
        if size > LARGEST or depth > DEEPEST:
            raise ValueError(f"a schema of more than {LARGEST} values, or deeper than {DEEPEST}")
        first = len(self.edges)
        for part in parts:
            node = part.child.node if part.child is not None else -1
            lead, absent = self._text(part.lead), self._text(part.absent)
            self.edges.append((node, *lead, part.number, part.repeated, part.choice, *absent))
        self.nodes.append((kind, argument, first, len(parts)))
        return CompiledNode(len(self.nodes) - 1, schema, size, depth)

    def _text(self, text: bytes) -> tuple[int, int]:
        start = len(self.texts)
        self.texts += text
        return start, len(self.texts)

    def done(self) -> Program:
        """Return the program; its root is the last added node."""
        return Program(
            np.array(self.nodes, np.int64).reshape(-1, 4),
            np.array(self.edges, np.int64).reshape(-1, _EDGE_COLUMNS),
            np.frombuffer(bytes(self.texts) or b"\0", np.uint8),
        )


def member_leads(names: Sequence[str]) -> list[bytes]:
    """Return the text before each member of an object."""
    return [(b"," if index else b"{") + quoted(name) + b":" for index, name in enumerate(names)]


def quoted(text: str) -> bytes:
    """Return a JSON string."""
    return json.dumps(text, ensure_ascii=False).encode()


def connect(kind: str, name: str = "", **more: Any) -> dict[str, Any]:
    """Return a Connect schema in the JSON converter's format, without empty members."""
    found: dict[str, Any] = {"type": kind, "optional": False}
    if name:
        found["name"] = name
    return found | {key: value for key, value in more.items() if value not in (None, {})}


def as_field(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a schema as the schema of a struct field."""
    return {**schema, "field": name}
