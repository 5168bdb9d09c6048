"""Reads the shards of a cluster, which are needed only to merge offsets that Debezium stored per shard."""

from __future__ import annotations

from pymongo import MongoClient, errors

from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.mongodb.driver.server_errors import UNAUTHORIZED, translated

log = logger(__name__)


def shard_names(client: MongoClient) -> list[str] | None:
    """Read the names of the shards from ``config.shards``.

    Returns:
        The names; an empty list for a replica set. None, with a warning, if the user may not read them.

    Raises:
        CdcError: The server is unreachable.
    """
    with translated("the cluster's shards can't be read"):
        try:
            return [str(shard["_id"]) for shard in client["config"]["shards"].find({}, {"_id": 1})]
        except errors.OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
    log.warning(
        "the user may not read config.shards, so it is assumed that each shard has an offset. To verify it, "
        "grant find on config.shards"
    )
    return None
