"""Events of Vitess: ``decode`` reads changes, ``records`` builds records in the form of ``envelope``.

``captured`` builds them from the changes table, ``recording`` from files, ``rows`` from rows of mirrors.
"""
