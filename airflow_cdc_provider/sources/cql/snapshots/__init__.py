"""Tables in full over CQL: token ranges, and rows as the server sends them to change records."""
