"""A Ray cluster of several nodes on this machine with Raydiance on it, asked by pipe: the child of `drill_world.World`.

    python load_tests/drill_cluster.py WANTED            WANTED: JSON, see `Cluster`

Commands and answers are lines of JSON; the first answer says where it is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_health_check_period_ms": "1000",  # a node that is frozen is noticed in some 15 s instead of a minute
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
    "TOKENIZERS_PARALLELISM": "false",
}
OBJECT_STORE_BYTES = 128 << 20


class Nodes:
    """Args:
    wanted: `nodes` beside the head, each with `cpus` and pretended `gpus`; `head_cpus`; `options` of Raydiance.
    """

    def __init__(self, wanted: dict[str, Any]) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._wanted = wanted
        self._http = {"host": "127.0.0.1", "port": wanted["port"]}
        head = {"num_cpus": wanted["head_cpus"], "num_gpus": 0, "include_dashboard": False}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**head, "object_store_memory": OBJECT_STORE_BYTES}
        )
        self._nodes = {"head": self._cluster.head_node}
        self._count = 0
        for _ in range(wanted["nodes"]):
            self.add_node()
        ray.init(address=self._cluster.address, logging_level="ERROR", log_to_driver=False)
        self._serve()
        self.deploy(wanted["options"], {})

    def _serve(self) -> None:
        from ray import serve
        from ray.serve.schema import LoggingConfig

        serve.start(proxy_location="HeadOnly", http_options=self._http, logging_config=LoggingConfig(log_level="INFO"))

    def where(self) -> dict[str, Any]:
        """The raylets by their node's name, and the folder of the session."""
        raylets = {name: node.all_processes["raylet"][0].process.pid for name, node in self._nodes.items()}
        return {"raylets": raylets, "session": self._nodes["head"].get_session_dir_path()}

    def add_node(self) -> str:
        self._count += 1
        name = f"node-{self._count}"
        self._nodes[name] = self._cluster.add_node(
            num_cpus=self._wanted["cpus"], num_gpus=self._wanted["gpus"], object_store_memory=OBJECT_STORE_BYTES
        )
        return name

    def forget_node(self, name: str) -> None:
        """One whose processes were killed."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def deploy(self, options: dict[str, Any], replicas: dict[str, int]) -> None:
        """As `serve deploy` does; does not wait until it is done. Other options are another version of all replicas.

        Args:
            replicas: of deployments that are to have another number of them than the options say, which is no other
                version.
        """
        from ray.serve.context import _get_global_client  # `serve deploy` itself needs the dashboard
        from ray.serve.schema import ServeDeploySchema

        application = {
            "name": "raydiance",
            "import_path": "raydiance.serve.app:build_app",
            "args": options,
            "deployments": [{"name": name, "num_replicas": count} for name, count in replicas.items()],
        }
        config = {"proxy_location": "HeadOnly", "http_options": self._http, "applications": [application]}
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))

    def status(self) -> dict[str, dict[str, Any]]:
        """By deployment: its status, and how many replicas are in which state."""
        from ray import serve

        app = serve.status().applications.get("raydiance")
        found = {} if app is None else app.deployments
        return {name: {"status": str(d.status), "replicas": dict(d.replica_states)} for name, d in found.items()}

    def left(self) -> dict[str, Any]:
        """Placement groups, and bytes in the object stores of all nodes together."""
        import ray

        groups = [g["state"] for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
        return {"placement_groups": len(groups), "address": self._cluster.address}


def main() -> None:
    os.environ |= ENVIRONMENT | dict(os.environ)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    nodes = Nodes(json.loads(sys.argv[1]))
    commands: dict[str, Callable[..., Any]] = {
        name: getattr(nodes, name) for name in ("where", "add_node", "forget_node", "deploy", "status", "left")
    }

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    answer(nodes.where())
    for line in sys.stdin:
        command = json.loads(line)
        answer(commands[command.pop("do")](**command))
    os._exit(0)  # whoever closed the pipe kills what is left


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted closes the pipe
    main()
