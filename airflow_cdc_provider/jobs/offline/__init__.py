"""Recordings without a server: lines of events or of rows, a module per source."""
