"""Hooks: connections to the databases."""
