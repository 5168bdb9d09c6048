from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.iceberg_schema import Addition, difference

INT, LONG, FLOAT, DOUBLE = IntegerType(), LongType(), FloatType(), DoubleType()
TEXT, BYTES, DATE = StringType(), BinaryType(), DateType()


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def changes(have: StructType, want: StructType, drift: Drift = NO_DRIFT) -> list[str]:
    return [str(change) for change in difference(have, want, "shop.t", drift)]


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        (struct(a=INT), struct(a=INT), []),
        (struct(a=INT), struct(a=INT, b=TEXT), ["added b string"]),
        (struct(a=INT, b=TEXT), struct(b=TEXT), []),
        (struct(a=INT), struct(a=LONG), ["widened a from int to bigint"]),
        (struct(a=LONG), struct(a=INT), []),
        (struct(a=FLOAT), struct(a=DOUBLE), ["widened a from float to double"]),
        (
            struct(a=DecimalType(5, 2)),
            struct(a=DecimalType(9, 2)),
            ["widened a from decimal(5,2) to decimal(9,2)"],
        ),
        (struct(a=DecimalType(9, 2)), struct(a=DecimalType(5, 2)), []),
        (struct(a=ArrayType(INT)), struct(a=ArrayType(LONG)), ["widened a.element from int to bigint"]),
        (
            struct(a=MapType(TEXT, FLOAT)),
            struct(a=MapType(TEXT, DOUBLE)),
            ["widened a.value from float to double"],
        ),
        (
            struct(a=ArrayType(struct(b=INT))),
            struct(a=ArrayType(struct(b=INT, c=DATE))),
            ["added a.element.c date"],
        ),
        (struct(a=struct(b=struct(c=INT))), struct(a=struct(b=struct(c=INT, d=INT))), ["added a.b.d int"]),
    ],
)
def test_what_grows_is_added_or_widened_and_what_shrinks_stays(
    have: StructType, want: StructType, expected: list[str]
) -> None:
    assert changes(have, want) == expected


def test_a_new_column_goes_behind_its_neighbour() -> None:
    have, want = struct(a=INT, z=INT), struct(first=INT, a=INT, b=INT, c=INT, z=INT)
    found = [(c.name, c.after) for c in difference(have, want, "shop.t", NO_DRIFT) if isinstance(c, Addition)]
    assert found == [("first", ""), ("b", "a"), ("c", "b")]


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (INT, TEXT),
        (TEXT, INT),
        (LONG, DOUBLE),
        (DecimalType(9, 2), DecimalType(9, 3)),
        (TimestampType(), DATE),
        (ArrayType(INT), INT),
        (MapType(INT, INT), MapType(TEXT, INT)),
        (MapType(struct(b=INT), INT), MapType(struct(b=INT, c=INT), INT)),
        (struct(b=INT), struct(b=BYTES)),
    ],
)
def test_any_other_change_is_an_error_that_names_column_and_types(have: DataType, want: DataType) -> None:
    expected = r"column a.* of shop\.t can't change its type: expected .*found"
    with pytest.raises(ConfigurationError, match=expected):
        changes(struct(a=have), struct(a=want))


@pytest.mark.parametrize(
    ("have", "want", "drift", "expected"),
    [
        (struct(a=INT, b=TEXT), struct(b=TEXT), Drift(exact=True), ["dropped a"]),
        (struct(a=INT), struct(b=INT), Drift(keys=1, exact=True), ["renamed a to b"]),
        # A run that was killed after the columns were changed finds them changed.
        (struct(b=INT), struct(b=INT), Drift(keys=1, exact=True), []),
        # Two key columns have changed their names with each other.
        (
            struct(a=INT, b=INT),
            struct(b=INT, a=INT),
            Drift(keys=2, exact=True),
            ["renamed a to b", "renamed b to a"],
        ),
        # A key column has got the name of one that was dropped.
        (
            struct(a=INT, b=TEXT),
            struct(b=INT),
            Drift(keys=1, replaced=frozenset({"b"}), exact=True),
            ["dropped b", "renamed a to b"],
        ),
        # A new column has got the name that a key column had.
        (
            struct(a=INT),
            struct(b=INT, a=TEXT),
            Drift(keys=1, exact=True),
            ["renamed a to b", "added a string"],
        ),
        (
            struct(a=INT),
            struct(a=TEXT),
            Drift(replaced=frozenset({"a"}), exact=True),
            ["dropped a", "added a string"],
        ),
        (
            struct(a=INT, b=INT),
            struct(b=LONG, a=INT),
            Drift(exact=True),
            ["widened b from int to bigint"],
        ),
        (
            struct(u=struct(x=INT, y=TEXT)),
            struct(u=struct(x=INT, why=TEXT, z=INT)),
            Drift(exact=True),
            ["renamed u.y to why", "added u.z int"],
        ),
        (
            struct(u=ArrayType(struct(x=INT))),
            struct(u=ArrayType(struct(y=LONG))),
            Drift(exact=True),
            ["renamed u.element.x to y", "widened u.element.x from int to bigint"],
        ),
    ],
)
def test_drift_describes_changes_that_names_do_not_show(
    have: StructType, want: StructType, drift: Drift, expected: list[str]
) -> None:
    assert changes(have, want, drift) == expected
