"""The tree of an expression: all that can be evaluated."""

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
"""What a name may begin with, and what it is if nothing follows."""


@dataclass(frozen=True)
class Constant:
    """A literal.

    Args:
        value: Null, truth value, whole number of 64 bits, floating-point number or text.
        where: Its place, for messages.
    """

    value: bool | int | float | str | None
    where: str = ""

    @property
    def kind(self) -> Kind:
        """Its type."""
        if self.value is None:
            return "null"
        if isinstance(self.value, bool):
            return "boolean"
        return "text" if isinstance(self.value, str) else "number"


@dataclass(frozen=True)
class Reference:
    """A part of the record.

    Args:
        root: One of :data:`ROOTS`.
        path: Names of fields below it; of a header its name.
        where: Its place, for messages.
    """

    root: str
    path: tuple[str, ...]
    where: str = ""

    @property
    def kind(self) -> Kind:
        """Its type as far as it is known without a record."""
        return "any" if self.path and self.root != "headers" else ROOTS[self.root]


@dataclass(frozen=True)
class Operation:
    """An operation.

    Args:
        name: Which.
        arguments: Of what.
        kind: Type of its result.
        where: Its place, for messages.
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
        text: As it was written.
        node: What it says.
    """

    text: str
    node: Node

    def references(self) -> Iterator[Reference]:
        """Yield the parts of the record that it names."""
        open_nodes = [self.node]
        while open_nodes:
            node = open_nodes.pop()
            if isinstance(node, Reference):
                yield node
            elif isinstance(node, Operation):
                open_nodes += node.arguments
