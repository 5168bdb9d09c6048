"""Events of Vitess: ``records`` makes them, of recordings too; ``lake`` reads what they are made of."""
