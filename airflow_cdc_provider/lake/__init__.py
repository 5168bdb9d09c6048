"""The lake: table formats behind one interface, the changes table, mirrors, reconciliation, verification."""
