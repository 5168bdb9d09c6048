"""Events of ScyllaDB: ``records`` makes them, of recordings too; ``lake`` reads what they are made of."""
