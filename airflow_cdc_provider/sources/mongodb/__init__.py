"""MongoDB: change streams and collection snapshots, as raw BSON."""
