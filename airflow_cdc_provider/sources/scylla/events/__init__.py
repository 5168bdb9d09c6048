"""Events of ScyllaDB: ``decode`` reads changes, ``records`` builds records in the form of ``envelope``.

``captured`` builds them from the changes table, ``rows`` from rows of mirrors.
"""
