"""The group map of every layout of every aligned subgroup, against a definition by enumeration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.parallel.mesh import AXES, Layout, Mesh, Subgroup, groups, layouts
from raydiance.parallel.shards import head_spans, shard, spans

WORLDS = range(1, 17)
POWERS = (1, 2, 4, 8, 16)


def brute_layouts(world: int) -> set[tuple[int, int, int, int]]:
    """(start, cfg, ring, ulysses)."""
    return {
        (start, cfg, ring, ulysses)
        for cfg, ring, ulysses in itertools.product(POWERS, repeat=3)
        for start in range(world)
        if start % (cfg * ring * ulysses) == 0 and start + cfg * ring * ulysses <= world
    }


def brute_coordinates(mesh: Mesh) -> dict[int, dict[str, int]]:
    """Ranks counted off one by one, the last axis running fastest."""
    points = itertools.product(*(range(getattr(mesh.layout, axis)) for axis in AXES))
    return {mesh.subgroup.start + i: dict(zip(AXES, point, strict=True)) for i, point in enumerate(points)}


@pytest.mark.parametrize("world", WORLDS)
def test_every_layout_is_listed_once(world: int) -> None:
    found = [(m.subgroup.start, m.layout.cfg, m.layout.ring, m.layout.ulysses) for m in layouts(world)]
    assert len(found) == len(set(found))
    assert set(found) == brute_layouts(world)


@pytest.mark.parametrize("world", WORLDS)
def test_members_differ_on_their_axis_only(world: int) -> None:
    needed = set()
    for mesh in layouts(world):
        at = brute_coordinates(mesh)
        assert set(at) == set(mesh.subgroup.ranks)
        for rank, mine in at.items():
            assert {axis: mesh.coordinate(rank, axis) for axis in AXES} == mine
            for axis in AXES:
                same = [r for r, c in at.items() if all(c[a] == mine[a] for a in AXES if a != axis)]
                same.sort(key=lambda r: at[r][axis])
                assert mesh.members(rank, axis) == tuple(same)
                needed.add(tuple(same))
            by_shard = sorted(
                (r for r, c in at.items() if c["cfg"] == mine["cfg"]), key=lambda r: (at[r]["ring"], at[r]["ulysses"])
            )
            assert mesh.sequence(rank) == tuple(by_shard)
            needed.add(tuple(by_shard))
    made = groups(world)
    assert len(made) == len({frozenset(ranks) for ranks in made})
    assert set(made) == {ranks for ranks in needed if len(ranks) > 1}


def test_sixteen_ranks_need_49_groups() -> None:
    assert len(groups(16)) == 15 + 2 * 7 + 4 * 3 + 8  # one block of 16, two of 8, four of 4, eight of 2


@pytest.mark.parametrize(("start", "size"), [(1, 2), (0, 3), (2, 4), (-2, 2), (0, 0)])
def test_unaligned_subgroups_are_refused(start: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} ranks from rank {start} on"):
        Subgroup(start, size)


def test_impossible_meshes_are_refused() -> None:
    with pytest.raises(ValueError, match="the ring degree must be a power of two, not 3"):
        Layout(ring=3)
    with pytest.raises(ValueError, match="cfg 2 x ring 1 x ulysses 2 needs 4 ranks, the subgroup has 2"):
        Mesh(Subgroup(0, 2), Layout(cfg=2, ulysses=2))
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        layouts(0)
    mesh = Mesh(Subgroup(2, 2), Layout(ulysses=2))
    for ask in (lambda: mesh.coordinate(1, "cfg"), lambda: mesh.members(4, "ring"), lambda: mesh.sequence(0)):
        with pytest.raises(ValueError, match=r"is not among ranks \[2, 3\]"):
            ask()


@given(st.integers(0, 1000), st.integers(1, 16))
def test_shards_are_even_to_one_and_in_order(length: int, ranks: int) -> None:
    held = shard(length, ranks)
    assert len(held) == ranks
    assert sum(held) == length
    assert max(held) - min(held) <= 1
    assert [i for span in spans(held) for i in range(length)[span]] == list(range(length))


@given(st.integers(0, 80), st.integers(1, 16), st.integers(1, 6))
def test_every_head_has_one_rank_and_group_and_groups_leave_shares_even(heads: int, ranks: int, groups: int) -> None:
    by_rank = head_spans(heads, ranks, groups)
    assert [h for rank in by_rank for span in rank for h in range(heads)[span]] == list(range(heads))
    assert tuple(sum(s.stop - s.start for s in rank) for rank in by_rank) == shard(heads, ranks)
    for rank in by_rank:
        sizes = [s.stop - s.start for s in rank]
        assert len(sizes) == groups
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("length", "ranks"), [(-1, 2), (4, 0)])
def test_nothing_is_dealt_to_nobody(length: int, ranks: int) -> None:
    with pytest.raises(ValueError, match=f"cannot deal {length} out over {ranks} ranks"):
        shard(length, ranks)
