"""Hooks: connections to the databases, and what operators, sensors and triggers look at."""
