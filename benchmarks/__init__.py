"""Benchmarks, each against a rival on the same input."""
