"""Changes of ALTER TABLE statements, and their effects on stored values."""

from __future__ import annotations

from airflow_cdc_provider.sources.vitess.ddl import Action, Added, Dropped, Modified, Renamed

ALTERS: list[tuple[str, list[Action]]] = [
    ("add column c int", [Added("c")]),
    ("ADD c int NULL DEFAULT NULL COMMENT 'a, b' FIRST", [Added("c")]),
    ("ADD COLUMN c decimal(6,2) DEFAULT 9.99 AFTER `b`", [Added("c", "9.99")]),
    ("ADD c int NOT NULL DEFAULT -1", [Added("c", "-1", nullable=False)]),
    (
        "ADD c varchar(9) NOT NULL DEFAULT 'it''s, so'",
        [Added("c", "it's, so", nullable=False, quoted=True)],
    ),
    ("ADD c varchar(9) DEFAULT _utf8mb4'x'", [Added("c", "x", quoted=True)]),
    ("ADD c bool DEFAULT true", [Added("c", "1")]),
    ("ADD c json DEFAULT ('{}')", [Added("c", "{}", quoted=True, expression=True)]),
    ("ADD c int DEFAULT (5)", [Added("c", "5", expression=True)]),
    (
        "ADD c datetime(6) DEFAULT '2001-01-01 00:00:00'",
        [Added("c", "2001-01-01 00:00:00", quoted=True)],
    ),
    (r"ADD c varchar(9) DEFAULT 'a\\b'", [Added("c", r"a\b", constant=False, quoted=True)]),
    (r"ADD c varchar(9) DEFAULT 'it\'s'", [Added("c", "it's", quoted=True)]),
    ("ADD c varchar(9) DEFAULT 'a' 'b'", [Added("c", None, constant=False)]),
    ("ADD c int DEFAULT 1e3", [Added("c", "1e3")]),
    ("ADD c int NOT NULL", [Added("c", None, constant=False, nullable=False)]),
    ("ADD c datetime DEFAULT CURRENT_TIMESTAMP", [Added("c", None, constant=False)]),
    ("ADD c char(36) DEFAULT (uuid())", [Added("c", None, constant=False)]),
    ("ADD c bit(3) DEFAULT b'101'", [Added("c", None, constant=False)]),
    ("ADD c int GENERATED ALWAYS AS (a * 2) STORED", [Added("c", None, constant=False)]),
    ("ADD c int AS (a * 2) VIRTUAL", [Added("c", None, constant=False)]),
    ("ADD c bigint AUTO_INCREMENT, ADD KEY (c)", [Added("c", None, constant=False)]),
    ("drop column a, DROP `b c`", [Dropped("a"), Dropped("b c")]),
    ("rename column a to b", [Renamed("a", "b")]),
    ("CHANGE COLUMN `old` `new` bigint unsigned NOT NULL", [Renamed("old", "new"), Modified("new")]),
    ("CHANGE a a varchar(300)", [Modified("a")]),
    ("modify column b text, rename column c to cc", [Modified("b"), Renamed("c", "cc")]),
    ("ADD x int /*!80023 INVISIBLE */", [Added("x")]),
    ("/* why, oh why */ ADD x int -- trailing", [Added("x")]),
    ("ADD INDEX i (a), ADD UNIQUE KEY u (b), ALGORITHM=INPLACE, LOCK=NONE", []),
    ("DROP INDEX i, RENAME INDEX a TO b, ALTER INDEX j INVISIBLE", []),
    ("ALTER COLUMN a SET DEFAULT 5, ALTER b DROP DEFAULT", []),
    ("ENGINE=InnoDB", []),
    ("COMMENT='x', AUTO_INCREMENT=100", []),
    ("ADD CONSTRAINT fk FOREIGN KEY (a) REFERENCES u (id)", []),
    ("ADD CHECK (a > 0)", []),
    ("PARTITION BY HASH(id) PARTITIONS 4", []),
    ("FORCE", []),
    ("DISABLE KEYS", []),
]
