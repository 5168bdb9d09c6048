"""Sources: one folder per database, each an implementation of :mod:`.contract`."""
