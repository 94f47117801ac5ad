"""How a process that computes on CPUs keeps the memory it frees, and whether a device had no more. No torch."""

from __future__ import annotations

import sys

KEPT_BYTES = 1 << 30


def environment(device: str) -> dict[str, str]:
    """Variables for the process: none on a GPU, where torch keeps its own pools.

    Every step frees what the next one allocates again. By default glibc gives large blocks back to the system each
    time, and the system clears every page anew: 6% of a generation's time (docs/log.md). Kept, the process stays at its
    peak. One arena, because the others hold blocks of at most 64 MB. Other C libraries ignore all this.
    See https://www.gnu.org/software/libc/manual/html_node/Malloc-Tunable-Parameters.html
    """
    if device != "cpu":
        return {}
    return {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
        "THP_MEM_ALLOC_ENABLE": "1",  # torch: huge pages for tensors of 2 MB and more
    }


def ran_out(error: Exception) -> bool:
    """Whether a device had no room. Nothing but torch raises that, so nothing is where torch was not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
