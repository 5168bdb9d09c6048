"""Programs for developers; see `make help`."""
