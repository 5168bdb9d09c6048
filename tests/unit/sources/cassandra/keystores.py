"""Keystores that Java's keytool made."""

from __future__ import annotations

from tests.unit.sources.cassandra.recordings import FIXTURES

KEYSTORES = FIXTURES.parent / "keystores"
MANY = str(KEYSTORES / "many.jceks")
