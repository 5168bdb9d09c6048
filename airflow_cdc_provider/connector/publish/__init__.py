"""Options of published events, below ``publish``: a module per target and per source."""
