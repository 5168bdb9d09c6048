"""What orders the transactions of a shard: epoch and rank, as Debezium's ordered metadata tell them.

``rank`` is the sum of the last numbers of all servers in the shard's set of GTIDs: it grows with each commit.
``epoch`` rises when the set loses a server, and when a shard gets its first set. Events of a row are compared
by epoch, then rank, then their number in the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.sources.vitess.events import Transactions


class Order(NamedTuple):
    """Per transaction.

    Args:
        epochs: int64.
        ranks: Whole numbers as big-endian two's complement of the fewest bytes.
    """

    epochs: pa.Array
    ranks: pa.Array
