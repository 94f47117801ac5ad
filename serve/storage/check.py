"""Whether the configured stores can be reached from every node."""

from __future__ import annotations

from raydiance.serve.config import Config
from raydiance.serve.errors import ConfigError


def check_storage(config: Config, num_nodes: int) -> None:
    """Files on one machine's disk serve one node only.

    Raises:
        ConfigError: names the option and its value.
    """
    if num_nodes <= 1:
        return
    if config.storage.database.startswith("sqlite"):
        raise ConfigError(
            f"storage.database={config.storage.database}: an SQLite file serves one node, the cluster has {num_nodes}; "
            "use postgresql://…"
        )
    if not config.storage.artifacts.startswith("s3://"):
        raise ConfigError(
            f"storage.artifacts={config.storage.artifacts}: a folder serves one node, the cluster has {num_nodes}; "
            "use s3://bucket/prefix"
        )
