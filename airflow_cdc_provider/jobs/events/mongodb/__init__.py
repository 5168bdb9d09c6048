"""Events of MongoDB: ``records`` builds them, also for recordings; ``lake`` reads their source records."""
