"""Which denoiser replica gets a sample: the one with the least to do, in seconds, or where its state or group was."""

from __future__ import annotations

from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica


class WorkRouter(FIFOMixin, RequestRouter):
    """Called with `last=ID` of the replica that has the state, it goes there unless another has much less to do; with
    `near=ID` of the one that had its group, where that has no more to do than others."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        from raydiance.serve.stages import loads

        super().update_replicas(replicas)
        loads.set_live(replica.replica_id.unique_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        from raydiance.serve.stages import loads

        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else it spins while there is no replica
        hints = {} if pending_request is None else pending_request.kwargs
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[by_id[each]] for each in loads.in_order(list(by_id), hints.get("last"), hints.get("near"))]
