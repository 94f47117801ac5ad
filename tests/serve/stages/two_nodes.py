"""Ranks on two nodes: a Ray cluster of two raylets, a replica's ranks placed over both, and a trajectory stepped there.

python -m tests.serve.stages.two_nodes          writes one line of JSON, see `main`
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.placement_group import placement_group
    from tests.fake_gpus import embeddings, spec

    from raydiance.models import registry, resolve
    from raydiance.parallel.mesh import Layout, Mesh, Subgroup
    from raydiance.parallel.schedule import SCHEDULES
    from raydiance.serve.config import DenoiserConfig, ModelConfig
    from raydiance.serve.engine.engine import Engine
    from raydiance.serve.engine.orders import Report, Start, Turn
    from raydiance.serve.parallel_config import ParallelConfig
    from raydiance.serve.stages.placement import placement
    from raydiance.serve.stages.rank_group import RankGroup

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    nodes, gpus = 2, 4
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": gpus // nodes})
    cluster.add_node(num_cpus=2, num_gpus=gpus // nodes)
    ray.init(address=cluster.address, log_to_driver=False)
    parallel = ParallelConfig(gpus=gpus, nodes=nodes, device="cpu", start_deadline_s=120)
    config = DenoiserConfig(num_gpus=1, num_threads=1)
    options = placement(config, parallel)
    group = placement_group(options["placement_group_bundles"], strategy=options["placement_group_strategy"])
    ray.get(group.ready())
    lost: list[Exception] = []
    folder = resolve.resolve("tiny")
    ranks = RankGroup(folder, ModelConfig(), config, parallel, group, lost.append)
    order = Start("a", spec(), embeddings())
    ranks.begin(order)
    layouts = [Layout(ring=2, ulysses=2), Layout(cfg=2, ulysses=2), Layout(ring=4)]
    latents = None
    for i in range(spec().num_inference_steps):
        mesh = Mesh(Subgroup(0, gpus), layouts[i % len(layouts)])
        [report] = ranks.step([Turn((("a",),), mesh, SCHEDULES["synchronous"])])
        if not isinstance(report, Report):
            raise report
        latents = report.outcomes["a"].result
    engine = Engine(registry.load(folder, "denoise", "tiny"))
    trajectory = engine.start(spec(), engine.family.conditioning(spec(), *embeddings()))
    while not trajectory.is_done:
        [trajectory] = engine.step([trajectory])
    names: list[str] = [place.node for place in ranks._processes.places]
    found: dict[str, Any] = {
        "off": float((latents - engine.finish(trajectory)).abs().max()),
        "nodes": [names.index(name) for name in names],
        "lost": len(lost),
    }
    print(json.dumps(found), file=answers, flush=True)
    ray.shutdown()
    cluster.shutdown()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
