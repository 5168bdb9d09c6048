"""Type programs: CQL types compiled to small integer tables for kernels.

A program is an int32 array of nodes, one row each; a table's columns share one program and each has a root::

    column  0   1             2            3         4
            op  fixed length  first child  children  dimensions

``fixed length`` is -1 for values with a length prefix; the children of a node are adjacent, in order
(element; key and value; fields); ``dimensions`` is the length of a vector. Kernels use the constants of this
module, so a new op only needs a branch in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.kernels import Bytes
from airflow_cdc_provider.sources.cql.schema import CqlType, TableSchema
from airflow_cdc_provider.sources.cql.types import LEXICAL_UUID, fixed_length

BLOB: Final = 0
TEXT: Final = 1
BOOLEAN: Final = 2
TINYINT: Final = 3
SMALLINT: Final = 4
INT: Final = 5
BIGINT: Final = 6
FLOAT: Final = 7
DOUBLE: Final = 8
TIMESTAMP: Final = 9
DATE: Final = 10
TIME: Final = 11
UUID: Final = 12
TIMEUUID: Final = 13
LEXICALUUID: Final = 14
INET: Final = 15
VARINT: Final = 16
DECIMAL: Final = 17
DURATION: Final = 18
COUNTER: Final = 19
EMPTY: Final = 20
CUSTOM: Final = 21
LIST: Final = 22
SET: Final = 23
MAP: Final = 24
TUPLE: Final = 25
UDT: Final = 26
VECTOR: Final = 27

OPS: Final = {
    "blob": BLOB,
    "ascii": TEXT,
    "text": TEXT,
    "boolean": BOOLEAN,
    "tinyint": TINYINT,
    "smallint": SMALLINT,
    "int": INT,
    "bigint": BIGINT,
    "float": FLOAT,
    "double": DOUBLE,
    "timestamp": TIMESTAMP,
    "date": DATE,
    "time": TIME,
    "uuid": UUID,
    "timeuuid": TIMEUUID,
    "inet": INET,
    "varint": VARINT,
    "decimal": DECIMAL,
    "duration": DURATION,
    "counter": COUNTER,
    "empty": EMPTY,
    "custom": CUSTOM,
    "list": LIST,
    "set": SET,
    "map": MAP,
    "tuple": TUPLE,
    "udt": UDT,
    "vector": VECTOR,
}
"""Type name -> op."""

OP: Final = 0
FIXED_LENGTH: Final = 1
FIRST_CHILD: Final = 2
CHILDREN: Final = 3
DIMENSIONS: Final = 4
NODE_COLUMNS: Final = 5

MAX_DEPTH: Final = 32
"""Maximum nesting depth of types: the size of kernels' stacks."""


Nodes = npt.NDArray[np.int32]
"""A row per node of a type, with the columns above."""


@dataclass(frozen=True)
class Programs:
    """Several types compiled into one array.

    Args:
        nodes: The nodes.
        roots: The root node of each type.
    """

    nodes: Nodes
    roots: npt.NDArray[np.int32]


def compile_types(types: Iterable[CqlType]) -> Programs:
    """Compile types, in order.

    Args:
        types: The types.

    Returns:
        The program.

    Raises:
        ConfigurationError: A type is nested deeper than :data:`MAX_DEPTH`.
    """
    roots = list(types)
    for cql_type in roots:
        if _depth(cql_type) > MAX_DEPTH:
            raise ConfigurationError("a type is nested too deeply", expected=f"at most {MAX_DEPTH} levels")
    rows: list[list[int]] = [_node(t) for t in roots]
    pending = list(enumerate(roots))
    for index, cql_type in pending:
        children = cql_type.parameters
        if children:
            rows[index][FIRST_CHILD] = len(rows)
            rows[index][CHILDREN] = len(children)
            pending.extend(enumerate(children, len(rows)))
            rows.extend(_node(c) for c in children)
    nodes = np.array(rows, np.int32).reshape(len(rows), NODE_COLUMNS)
    return Programs(nodes, np.arange(len(roots), dtype=np.int32))


@dataclass(frozen=True)
class ClusteringProgram:
    """A program for encoding clusterings: see :mod:`airflow_cdc_provider.sources.cql.comparable`.

    Args:
        nodes: The program.
        roots: Node of each clustering column, int32.
        descending: 1 for each column in descending order, uint8.
    """

    nodes: npt.NDArray[np.int32]
    roots: npt.NDArray[np.int32]
    descending: Bytes


def compile_clustering(schema: TableSchema) -> ClusteringProgram:
    """Compile a table's clustering columns."""
    columns = schema.clustering
    programs = compile_types(c.type for c in columns)
    descending = np.array([c.descending for c in columns], np.uint8)
    return ClusteringProgram(programs.nodes, programs.roots, descending)


def _node(cql_type: CqlType) -> list[int]:
    op = LEXICALUUID if cql_type.udt == LEXICAL_UUID else OPS[cql_type.name]
    return [op, fixed_length(cql_type), 0, 0, cql_type.dimensions]


def _depth(cql_type: CqlType) -> int:
    return 1 + max((_depth(p) for p in cql_type.parameters), default=0)
