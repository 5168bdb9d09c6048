"""Events of ScyllaDB: ``records`` builds them, also for recordings; ``lake`` reads their source records."""
