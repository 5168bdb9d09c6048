"""Vitess: VStream, read as raw messages."""
