"""A table of ScyllaDB whose topics are compared with its mirror."""

from __future__ import annotations

from server_kit.scylla import CdcOptions, Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from tests.integration.jobs.shop import Shop


def scylla_table(shop: Shop, names: SystemKeyspaces, options: CdcOptions) -> ImitatedScylla:
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    table = Table(
        shop.keyspace,
        "item",
        (Column("shop", CqlType("int")),),
        (Column("sku", CqlType("int")),),
        (Column("owner", CqlType("text")),),
        (Column("qty", CqlType("int")), Column("price", CqlType("double"))),
        cdc=options,
    )
    cluster.create_table(table)
    return cluster
