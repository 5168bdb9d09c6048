"""Programs that turn binary values into JSON: a schema, compiled once, as tables that kernels follow.

A node says how a value is read, its edges what stands inside it and what is written before each part::

    nodes   kind | argument | first edge | edges          one row per node; the root is the last one
    edges   child | start of its lead | end | ...         leads are texts such as {"id": or ,"name":

Behind its lead an edge has what formats need whose parts have numbers: :class:`Part`.

Nodes may be shared by several parents, but none stands inside itself: a schema that nests in itself has no
columns, and is refused. :data:`DEEPEST` and :data:`LARGEST` bound what a schema from elsewhere may cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.changes.spans import Bytes

DEEPEST: Final = 64
"""How deep nodes may stand in each other."""
LARGEST: Final = 20_000
"""How many values a schema may have, each counted as often as it can stand in a row."""

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Program:
    """What kernels follow: the tables above and the texts of all leads."""

    nodes: Table
    edges: Table
    texts: Bytes


@dataclass(frozen=True)
class Made:
    """A node with what it is for Connect.

    Args:
        node: Its number.
        schema: Connect's schema, as the JSON converter writes it.
        size: How many values it has.
        depth: How many nodes stand in each other.
    """

    node: int
    schema: Mapping[str, Any]
    size: int = 1
    depth: int = 1


@dataclass(frozen=True)
class Part:
    """What stands inside a node.

    Args:
        made: Its node; None for null, and where there is nothing but the lead.
        lead: What is written before it.
        number: By which it is told.
        repeated: :data:`LIST` or :data:`OBJECT` where there may be several, which make one; else 0.
        choice: Of which at most one part is there; 0 for none.
        absent: What is written where it isn't there.
    """

    made: Made | None
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
        self,
        kind: int,
        schema: Mapping[str, Any],
        argument: int = 0,
        parts: Sequence[Part] = (),
    ) -> Made:
        """Add a node.

        Args:
            kind: What it is, in the words of its format.
            schema: Connect's schema of it.
            argument: What the kind wants.
            parts: What stands inside it.

        Raises:
            ValueError: The schema is too large or too deep.
        """
        inside = [part.made for part in parts if part.made is not None]
        size = 1 + sum(made.size for made in inside)
        depth = 1 + max((made.depth for made in inside), default=0)
        if size > LARGEST or depth > DEEPEST:
            raise ValueError(f"a schema of more than {LARGEST} values, or deeper than {DEEPEST}")
        first = len(self.edges)
        for part in parts:
            node = part.made.node if part.made is not None else -1
            lead, absent = self._text(part.lead), self._text(part.absent)
            self.edges.append((node, *lead, part.number, part.repeated, part.choice, *absent))
        self.nodes.append((kind, argument, first, len(parts)))
        return Made(len(self.nodes) - 1, schema, size, depth)

    def _text(self, text: bytes) -> tuple[int, int]:
        start = len(self.texts)
        self.texts += text
        return start, len(self.texts)

    def done(self) -> Program:
        """Return the program; its root is the node that was added last."""
        return Program(
            np.array(self.nodes, np.int64).reshape(-1, 4),
            np.array(self.edges, np.int64).reshape(-1, _EDGE_COLUMNS),
            np.frombuffer(bytes(self.texts) or b"\0", np.uint8),
        )


def member_leads(names: Sequence[str]) -> list[bytes]:
    """Return what is written before each member of an object."""
    return [(b"," if place else b"{") + quoted(name) + b":" for place, name in enumerate(names)]


def quoted(text: str) -> bytes:
    """Write a string of JSON."""
    return json.dumps(text, ensure_ascii=False).encode()


def connect(kind: str, name: str = "", **more: Any) -> dict[str, Any]:
    """Return a schema of Connect as its JSON converter writes it; members without a value are left out."""
    found: dict[str, Any] = {"type": kind, "optional": False}
    if name:
        found["name"] = name
    return found | {key: value for key, value in more.items() if value not in (None, {})}


def as_field(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a schema as that of a struct's field."""
    return {**schema, "field": name}
