"""Signals: what a running connector is asked to do, whichever way the wish reaches it. Knows no database."""
