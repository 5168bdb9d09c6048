"""Audits what the project depends on and what it has checked in: see :mod:`.__main__`."""
