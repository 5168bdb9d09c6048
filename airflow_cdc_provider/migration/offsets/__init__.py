"""Conversion of offsets that other connectors have stored: a module per source."""
