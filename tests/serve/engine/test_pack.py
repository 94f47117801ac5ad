"""Bytes to trajectory and back, and bytes that are none."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.studio import RANDOM, make_spec, studio_of

from raydiance.serve.engine.pack import PackError, pack, unpack
from raydiance.serve.engine.trajectory import Fixed, Trajectory, content_hash


@functools.cache
def middle(name: str = "unipc") -> Trajectory:
    studio = studio_of(name)
    return studio.run(studio.start(make_spec("image-to-video", prompt='"é"\ud800', num_inference_steps=5)), to=3)


def tensors_of(trajectory: Trajectory) -> dict[str, torch.Tensor]:
    tensors = {"latents": trajectory.latents, "generator_state": trajectory.generator_state}
    if trajectory.denoised is not None:
        tensors["denoised"] = trajectory.denoised
    return tensors | trajectory.solver.to_parts()[0]


def assert_same(one: Trajectory, two: Trajectory) -> None:
    assert (one.step_index, one.spec, one.fixed.id) == (two.step_index, two.spec, two.fixed.id)
    assert one.solver.to_parts()[1] == two.solver.to_parts()[1]
    assert content_hash(tensors_of(one)) == content_hash(tensors_of(two))


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("step", [0, 1, 3, 5])
def test_a_trajectory_comes_back_as_it_was(name, step):
    studio = studio_of(name)
    trajectory = studio.run(studio.start(make_spec("image-to-video", num_inference_steps=5)), to=step)
    assert_same(unpack(pack(trajectory)), trajectory)
    assert_same(unpack(pack(trajectory, with_fixed=False), trajectory.fixed), trajectory)
    assert_same(unpack(pack(unpack(pack(trajectory)))), trajectory)


def test_other_types_come_back_as_they_were():
    trajectory = middle()
    conditioning = {k: v.to(torch.bfloat16) for k, v in trajectory.fixed.conditioning.items()}
    trajectory = replace(trajectory, fixed=Fixed(trajectory.spec, conditioning))
    assert_same(unpack(pack(trajectory)), trajectory)
    assert unpack(pack(trajectory)).fixed.conditioning["prompt_embeds"].dtype == torch.bfloat16


def test_the_mutable_half_is_small_and_joins_only_its_own_other_half():
    trajectory = middle()
    data = pack(trajectory, with_fixed=False)
    assert len(data) < len(pack(trajectory))
    with pytest.raises(PackError, match="give the fixed half"):
        unpack(data)
    changed = {k: v + 1 for k, v in trajectory.fixed.conditioning.items()}
    with pytest.raises(PackError, match="conditioning"):
        unpack(data, Fixed(trajectory.spec, changed))
    with pytest.raises(PackError, match="another spec"):
        unpack(data, Fixed(replace(trajectory.spec, seed=8), trajectory.fixed.conditioning))


def test_another_version_and_another_format_are_named():
    data = pack(middle())
    with pytest.raises(PackError, match="version '2' cannot be read; this reads '1'"):
        unpack(data.replace(b'"version":"1"', b'"version":"2"'))
    with pytest.raises(PackError, match="format is None"):
        unpack(safetensors.torch.save({"a": torch.zeros(1)}, {"version": "1"}))
    with pytest.raises(PackError, match="header cannot be read"):
        unpack(safetensors.torch.save({"a": torch.zeros(1)}))


@given(st.data())
def test_cut_bytes_are_refused(data):
    packed = pack(middle(), with_fixed=False)
    length = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(PackError):
        unpack(packed[:length], middle().fixed)


@given(st.data())
def test_changed_bytes_are_refused_or_change_nothing(data):
    packed = bytearray(pack(middle(), with_fixed=False))
    header = int.from_bytes(packed[:8], "little") + 8
    where = data.draw(st.integers(0, header - 1) | st.integers(0, len(packed) - 1))
    packed[where] = data.draw(st.integers(0, 255))
    try:
        unpacked = unpack(bytes(packed), middle().fixed)
    except PackError:
        return
    assert_same(unpacked, middle())


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: len(b).to_bytes(8, "little") + b))
def test_garbage_is_refused(data):
    with pytest.raises(PackError):
        unpack(data)


@pytest.mark.parametrize(
    "header", [b"{}", b"[]", b"0", b'{"__metadata__": 1}', b'{"__metadata__": {"format": {}}}', b"[" * 100_000]
)
def test_odd_headers_are_refused(header):
    with pytest.raises(PackError):
        unpack(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"prompt": "a ball"}},
        {"spec": []},
        {"step_index": -1},
        {"step_index": 10**6},
        {"step_index": "1"},
        {"solver": None},
        {"fixed_id": None},
        None,
    ],
)
def test_what_is_whole_but_no_trajectory_is_refused(changes):
    """Its digest is right: whoever writes such bytes can make one."""
    packed = pack(middle())
    header_bytes = packed[8 : 8 + int.from_bytes(packed[:8], "little")]
    metadata = json.loads(header_bytes)["__metadata__"]
    tensors = safetensors.torch.load(packed)
    metadata["header"] = "no JSON" if changes is None else json.dumps(json.loads(metadata["header"]) | changes)
    for without in ("", "latents", "generator_state"):
        left = {name: tensor for name, tensor in tensors.items() if name != without}
        metadata["digest"] = content_hash(left, metadata["header"])
        with pytest.raises(PackError):
            unpack(safetensors.torch.save(left, metadata))
