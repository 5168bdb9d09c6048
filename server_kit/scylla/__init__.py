"""An imitation of ScyllaDB's change data capture for tests: its log and metadata tables on a real Cassandra.

A model applies CQL statements to a table and makes log rows exactly as ScyllaDB's documentation and source
say. Nothing of it comes from the package whose capture is tested, so neither inherits the other's mistakes.

============================= =================================================================
:mod:`.values`                types, native bytes, the database's order
:mod:`.tables`                base tables and the option ``cdc``
:mod:`.statements`            statements as values, and as CQL
:mod:`.partitions`            cells, rows, tombstones, and how they merge
:mod:`.mutations`             statements to mutations
:mod:`.base_table`            what a SELECT shows
:mod:`.log_rows`, :mod:`.images`  mutations to log rows, with preimages and postimages
:mod:`.timeuuids`             ``cdc$time`` and ids of list cells
:mod:`.generations`           stream ids, generations with vnodes, stream sets with tablets
:mod:`.schemas`               tables as CQL
:mod:`.system_tables`         rows of the server's own tables
:mod:`.cluster`               all together on a real Cassandra
:mod:`.workload`              random tables and statements
:mod:`.turmoil`               what happens to a cluster meanwhile
============================= =================================================================
"""

from __future__ import annotations

from server_kit.scylla.cluster import ImitatedScylla, LoggedChange, remove_cluster
from server_kit.scylla.errors import InvalidRequest
from server_kit.scylla.schemas import SystemKeyspaces
from server_kit.scylla.tables import CdcOptions, Column, Delta, Preimage, Table
from server_kit.scylla.turmoil import Turmoil
from server_kit.scylla.values import CqlType
from server_kit.scylla.workload import PAIR, Workload, draw_table

__all__ = [
    "PAIR",
    "CdcOptions",
    "Column",
    "CqlType",
    "Delta",
    "ImitatedScylla",
    "InvalidRequest",
    "LoggedChange",
    "Preimage",
    "SystemKeyspaces",
    "Table",
    "Turmoil",
    "Workload",
    "draw_table",
    "remove_cluster",
]
