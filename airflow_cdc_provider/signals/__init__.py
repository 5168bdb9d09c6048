"""Signals: requests to a running connector, independent of their channel and of the database."""
