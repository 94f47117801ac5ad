from raydiance.serve.engine import memory


def test_a_gpu_stage_is_left_alone() -> None:
    assert memory.environment("cuda") == {}


def test_a_cpu_stage_keeps_large_blocks_in_one_arena() -> None:
    variables = memory.environment("cpu")
    assert variables["MALLOC_ARENA_MAX"] == "1"
    assert int(variables["MALLOC_TRIM_THRESHOLD_"]) == int(variables["MALLOC_MMAP_THRESHOLD_"]) == memory.KEPT_BYTES
