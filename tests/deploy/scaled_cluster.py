"""A program that scales a light deployment by the real policy in a real Serve controller, and is asked by pipe.

    python -m tests.deploy.scaled_cluster RULES          RULES: JSON of fields of `Rules`

Apart from the tests' process: Ray reads its environment when it is imported. Commands and answers are lines of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.piped import Piped

APP, NAME, MODEL = "elastic", "Denoiser-m", "m"
KEY = f"{APP}/signals/{MODEL}/one"


class ScaledCluster(Piped):
    """The program, as a test sees it."""

    def __init__(self, rules: dict[str, Any]) -> None:
        super().__init__("tests.deploy.scaled_cluster", json.dumps(rules))

    def tell(self, **signals: Any) -> None:
        """What the dispatcher of the model tells from now on, twice a second; `raw` as it is, `silent` nothing."""
        self.ask("tell", **signals)

    def seen(self) -> dict[str, Any]:
        """`targets`: every one that was asked for so far, with the seconds; `live`: replicas that serve; `log`."""
        return dict(self.ask("seen"))

    def wait(self, live: int, timeout_s: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while (seen := self.seen())["live"] != live or not seen["targets"] or seen["targets"][-1][1] != live:
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)
        return seen


@contextmanager
def scaled_cluster(**rules: Any) -> Iterator[ScaledCluster]:
    program = ScaledCluster(rules)
    try:
        yield program
    finally:
        program.stop()


class Dispatcher(threading.Thread):
    """Tells as the real one does, and nothing else."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.signals: dict[str, Any] = {"work": [], "arrived_s": 0.0}

    def run(self) -> None:
        from ray.experimental import internal_kv

        for turn in itertools.count():
            told = dict(self.signals)
            if not told.pop("silent", False):
                is_waking, raw = told.pop("is_waking", False), told.pop("raw", None)
                text = raw or json.dumps({"turn": turn, "is_waking": is_waking, "denoiser": told})
                internal_kv._internal_kv_put(KEY, text, namespace="raydiance-autoscaling")
            time.sleep(0.5)


class Watcher(threading.Thread):
    """Every target that Serve's controller had."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.targets: list[tuple[float, int]] = []
        self.live = 0

    def run(self) -> None:
        import ray
        from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

        controller, began = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE), time.monotonic()
        while True:
            details = ray.get(controller.get_serve_instance_details.remote())
            deployment = details["applications"].get(APP, {}).get("deployments", {}).get(NAME)
            if deployment is None:  # the controller has not come to it yet, or is at its end
                continue
            target = int(deployment["target_num_replicas"])
            self.live = sum(replica["state"] == "RUNNING" for replica in deployment["replicas"])
            if not self.targets or self.targets[-1][1] != target:
                self.targets.append((round(time.monotonic() - began, 2), target))
            time.sleep(0.05)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import ray
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    rules = json.loads(sys.argv[1])
    ray.init("local", num_cpus=16, include_dashboard=False, logging_level="ERROR")
    policy = AutoscalingPolicy(
        policy_function="raydiance.deploy.autoscaling:WorkPolicy",
        policy_kwargs={"stage": "denoiser", "models": [MODEL], "rules": rules},
    )
    elastic = AutoscalingConfig(
        min_replicas=rules["min_replicas"],
        initial_replicas=max(rules["min_replicas"], 1),
        max_replicas=rules["max_replicas"],
        upscale_delay_s=0,
        downscale_delay_s=0,
        policy=policy,
    )

    @serve.deployment(name=NAME, autoscaling_config=elastic, ray_actor_options={"num_cpus": 0.1})
    class Light:
        def __call__(self) -> None: ...

    dispatcher, watcher = Dispatcher(), Watcher()
    dispatcher.start()
    serve.run(Light.bind(), name=APP, route_prefix=None)
    watcher.start()

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    def controller_log() -> list[str]:
        folder = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs" / "serve"
        lines = [line for file in folder.glob("controller_*.log") for line in file.read_text().splitlines()]
        return [line for line in lines if "autoscaling of" in line]

    answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if command.pop("do") == "tell":
            dispatcher.signals = {"work": [], "arrived_s": 0.0, **command}
            answer(None)
        else:
            answer({"targets": watcher.targets, "live": watcher.live, "log": controller_log()})
    serve.shutdown()
    os._exit(0)  # nothing of Ray's is left


if __name__ == "__main__":
    main()
