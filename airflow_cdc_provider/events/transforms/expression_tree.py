"""Expression tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["any", "number", "text", "boolean", "null"]

ROOTS: Final[Mapping[str, Kind]] = {
    "value": "any",
    "key": "any",
    "topic": "text",
    "partition": "number",
    "timestamp": "number",
    "headers": "text",
}
"""Roots of references, and their types without a path."""


@dataclass(frozen=True)
class Constant:
    """A literal.

    Args:
        value: Null, boolean, 64-bit integer, floating-point number or text.
        where: Its position, for messages.
    """

    value: bool | int | float | str | None
    where: str = ""

    @property
    def kind(self) -> Kind:
        """Type of the literal."""
        if self.value is None:
            return "null"
        if isinstance(self.value, bool):
            return "boolean"
        return "text" if isinstance(self.value, str) else "number"


@dataclass(frozen=True)
class Reference:
    """A reference to a part of the record.

    Args:
        root: One of :data:`ROOTS`.
        path: Names of nested fields, or name of a header.
        where: Its position, for messages.
    """

    root: str
    path: tuple[str, ...]
    where: str = ""

    @property
    def kind(self) -> Kind:
        """Type, as far as known without a record."""
        return "any" if self.path and self.root != "headers" else ROOTS[self.root]


@dataclass(frozen=True)
class Operation:
    """An operation.

    Args:
        name: Name of the operation.
        arguments: Operands.
        kind: Type of the result.
        where: Its position, for messages.
    """

    name: str
    arguments: tuple[Node, ...]
    kind: Kind
    where: str = ""


Node = Constant | Reference | Operation


@dataclass(frozen=True)
class Expression:
    """A checked expression.

    Args:
        text: Source text.
        node: Root of the tree.
    """

    text: str
    node: Node

    def references(self) -> Iterator[Reference]:
        """Yield its references to parts of the record."""
        open_nodes = [self.node]
        while open_nodes:
            node = open_nodes.pop()
            if isinstance(node, Reference):
                yield node
            elif isinstance(node, Operation):
                open_nodes += node.arguments
