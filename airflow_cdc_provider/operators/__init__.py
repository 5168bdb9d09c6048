"""Operators: each runs one stage of a connector."""
