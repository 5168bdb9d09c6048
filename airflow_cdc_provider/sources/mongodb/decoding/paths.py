"""Finds the values at many dotted paths in one walk over each document.

The paths are compiled to a tree of names, numbered depth first. The walk compares each member's name with the
children of the current node, descends into a document or array only if a path does, and skips everything else
by its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.formats.bson import ARRAY, DOCUMENT, STRING, name_end, value_end
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker

Path = tuple[str, ...]


@dataclass(frozen=True)
class Values:
    """Spans of one value in each document: BSON type (0: missing), first byte and byte after."""

    kinds: Ints
    starts: Ints
    ends: Ints

    def text(self, data: Bytes, row: int) -> str:
        """Return the string of one document, empty if it is missing."""
        if self.kinds[row] != STRING:
            return ""
        return data[self.starts[row] + 4 : self.ends[row] - 1].tobytes().decode(errors="replace")


@dataclass(frozen=True)
class Found:
    """Values of many paths: matrices with a row per path and a column per document.

    Args:
        kinds: BSON type, 0 for a missing value.
        starts: First byte, 0 for a missing value.
        ends: Byte after.
        sound: Whether a document is valid, as far as the walk descended.
    """

    kinds: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    sound: npt.NDArray[np.bool_]

    def values(self, row: int) -> Values:
        """Return one path's values."""
        return Values(*(a[row].astype(np.int64) for a in (self.kinds, self.starts, self.ends)))


@dataclass
class _Node:
    """A name in the tree, with the number of the path that ends here, or -1."""

    path: int = -1
    children: dict[str, _Node] = field(default_factory=dict)


class Paths:
    """Compiled paths. If a name repeats, the last member counts; a number is an array index.

    Args:
        paths: Member names that lead to each value; no path is empty.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._rows = {path: row for row, path in enumerate(dict.fromkeys(paths))}
        self._order = [self._rows[path] for path in paths]
        root = _Node()
        for path, row in self._rows.items():
            node = root
            for name in path:
                node = node.children.setdefault(name, _Node())
            node.path = row
        names = bytearray()
        table: list[list[int]] = []
        _number(root, b"", names, table)
        self._names = np.frombuffer(bytes(names), np.uint8)
        self._nodes = np.array(table, np.int32).reshape(-1, _COLUMNS)
        self._depth = max(map(len, paths), default=0) + 1

    def find(self, data: Bytes, starts: Ints, ends: Ints) -> Found:
        """Find all values.

        Args:
            data: The buffer.
            starts: First byte of each document, -1 for none.
            ends: Byte after each.
        """
        shape = (len(self._rows), len(starts))
        first, after = np.zeros((2, *shape), np.int32)
        found = Found(np.zeros(shape, np.uint8), first, after, np.zeros(len(starts), np.bool_))
        scratch = (np.empty(self._depth + 1, np.int64), np.empty(self._depth + 1, np.int32))
        arguments = (self._names, self._nodes, *scratch)
        _walk(data, starts, ends, *arguments, found.kinds, found.starts, found.ends, found.sound)
        if self._order == list(range(len(self._rows))):
            return found
        order = self._order
        return Found(found.kinds[order], found.starts[order], found.ends[order], found.sound)


# Columns of the table of nodes.
_NAME: Final = 0
_SIZE: Final = 1
_PATH: Final = 2
_SIBLING: Final = 3
_BELOW: Final = 4
_END: Final = 5
_COLUMNS: Final = 6


def _number(node: _Node, name: bytes, names: bytearray, table: list[list[int]]) -> int:
    """Number a node and those below it, depth first; return its number."""
    mine = len(table)
    table.append([len(names), len(name), node.path, -1, -1, -1])
    names += name
    before = -1
    for text, child in node.children.items():
        number = _number(child, text.encode(), names, table)
        if before < 0:
            table[mine][_BELOW] = number
        else:
            table[before][_SIBLING] = number
        before = number
    table[mine][_END] = len(table)
    return mine


@walker
def _walk(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    names: Bytes,
    nodes: Ints,
    limits: Ints,
    firsts: Ints,
    kinds: Ints,
    value_starts: Ints,
    value_ends: Ints,
    sound: Flags,
) -> None:
    for row in range(len(starts)):
        if starts[row] < 0 or value_end(data, DOCUMENT, starts[row], ends[row]) != ends[row]:
            continue
        depth = 0
        limits[0] = ends[row] - 1
        firsts[0] = nodes[0, _BELOW]
        pos = starts[row] + 4
        while True:
            limit = limits[depth]
            if pos >= limit:
                if depth == 0:
                    sound[row] = True
                    break
                depth -= 1
                pos = limit + 1
                continue
            kind = np.int64(data[np.uint64(pos)])
            name = pos + 1
            stop = name_end(data, name, limit)
            after = value_end(data, kind, stop + 1, limit) if stop >= 0 else stop
            if after < 0:
                for path in range(len(kinds)):
                    kinds[path, row] = 0
                break
            node = _child(data, name, stop - name, names, nodes, firsts[depth])
            pos = after
            if node < 0:
                continue
            _forget(nodes, node, kinds, row)
            if nodes[node, _PATH] >= 0:
                kinds[nodes[node, _PATH], row] = kind
                value_starts[nodes[node, _PATH], row] = stop + 1
                value_ends[nodes[node, _PATH], row] = after
            if nodes[node, _BELOW] >= 0 and kind in (DOCUMENT, ARRAY):
                depth += 1
                limits[depth] = after - 1
                firsts[depth] = nodes[node, _BELOW]
                pos = stop + 5


@walker
def _child(data: Bytes, start: int, size: int, names: Bytes, nodes: Ints, node: Int) -> Int:
    """Return the node with a name among a node and its next siblings, -1 for none."""
    while node >= 0:
        if nodes[node, _SIZE] == size:
            name_start = nodes[node, _NAME]
            same = True
            for i in range(size):
                if data[np.uint64(start + i)] != names[np.uint64(name_start + i)]:
                    same = False
                    break
            if same:
                return node
        node = nodes[node, _SIBLING]
    return node


@walker
def _forget(nodes: Ints, node: int, kinds: Ints, row: int) -> None:
    """Reset the values that an earlier member with the same name set for the paths below."""
    for other in range(node + 1, nodes[node, _END]):
        if nodes[other, _PATH] >= 0:
            kinds[nodes[other, _PATH], row] = 0
