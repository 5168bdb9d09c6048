"""What every part agrees on: change records, contributions and cell rows, as Arrow schemas and bytes."""
