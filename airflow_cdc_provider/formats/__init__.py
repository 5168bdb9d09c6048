"""Formats that belong to no source: kernels and parsers of bytes."""
