"""Commands, cursors and errors of the server, below PyMongo's own."""
