"""What the imitated server refuses."""

from __future__ import annotations


class InvalidRequest(ValueError):
    """A statement that ScyllaDB refuses; nothing of it is done."""
