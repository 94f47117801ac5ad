"""A VAE decoder over several ranks: real gloo ranks without Ray, and what is refused and placed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families.kit import all_models
from tests.guests import save_sana
from tests.parallel.rank import SHORT_DEADLINE_S
from tests.parallel.worlds import result, run_worlds

from raydiance.models.tiles import TileRunner
from raydiance.models.tokens import Forward, run_in_turn
from raydiance.serve import app, local
from raydiance.serve.config import Config, ModelConfig, VAEDecoderConfig, load_config
from raydiance.serve.errors import ConfigError
from raydiance.serve.preflight import check_gpus
from raydiance.serve.stages.decoder_actors import check_apart
from raydiance.serve.stages.placement import decoder_placement
from raydiance.serve.stages.processes import Place

LONGEST_S = 120


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_worlds("tests.serve.stages.decoder_world", tmp_path_factory.mktemp("worlds"), LONGEST_S)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_tiles_and_only_tiles(worlds: Path, size: int) -> None:
    first, *others = (result(worlds / f"well-{size}", rank) for rank in range(size))
    assert (first["whole"], first["tiled"]) == ("right", "right")
    assert first["tiles"] == {2: [3, 2], 3: [2, 2, 1]}[size]
    assert first["in turn"] == [True, True, True, None, None]
    tiled = 1 + 1 + 2 * size  # `tiled`, `in turn`, and two for each rank that fails
    assert [other["orders"] for other in others] == [tiled] * len(others)


@pytest.mark.parametrize("size", [2, 3])
def test_a_tile_that_cannot_be_decoded_fails_its_request_alone(worlds: Path, size: int) -> None:
    first = result(worlds / f"well-{size}", 0)
    assert first["raises before tiles"] == "ArithmeticError: no decoding can be begun"
    for rank in range(size):
        row = [4.0 * tile + i for tile in range(rank, 5, size) if tile >= 2 for i in range(4)][:4]
        why = f"ArithmeticError: row {row} cannot be decoded"
        if rank:
            why = f"GenerationFailed: rank {rank} of the VAE decoder could not decode a tile: {why}"
        assert first[f"raises on {rank}"] == why
        assert first[f"after {rank}"] == "right"
    assert first["lost"] == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises before tiles", "ArithmeticError: .* out of step: no decoding can be begun"),
        ("whole", "RuntimeError: .* 32x32 was decoded in tiles by the first rank, and whole by this one"),
        ("stops", r"PeerLost: .* rank 0 lost rank 1 in an all-to-all .* no answer within 2 s"),
    ],
)
def test_ranks_that_are_out_of_step_are_told_of_and_nothing_hangs(worlds: Path, fault: str, says: str) -> None:
    first = result(worlds / f"{fault}-2", 0)
    lost = first["lost"]
    assert lost
    assert re.match(says, lost[0]), lost
    assert first["said"].startswith("PeerLost")
    assert first["after_s"] < SHORT_DEADLINE_S + 10  # machines are busy
    assert "ExchangeMisused" in first["again"]


class InTurn:
    concurrency = 2
    ran = 0

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        self.ran += len(forwards)
        return run_in_turn(forwards)


@pytest.mark.parametrize("name", ["flux-dev", "hidream-full", "ltx", "wan-ti2v"])
def test_every_family_hands_out_the_tiles_of_a_decoder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [model] = [m for m in all_models() if m.name == name]
    decoder, case, runner = model.studio.decoder, model.cases[0], InTurn()
    vae = decoder.pipeline.vae  # type: ignore[attr-defined]
    if hasattr(vae, "tile_sample_min_height"):
        for side in ("height", "width"):
            monkeypatch.setattr(vae, f"tile_sample_min_{side}", 64 if name == "ltx" else 32)
            monkeypatch.setattr(vae, f"tile_sample_stride_{side}", 32 if name == "ltx" else 24)
    latents = model.studio.start(case).latents
    decoder.set_tokens(TileRunner(runner, small=True))
    try:
        assert len(list(decoder.decode(latents, case.spec))) == 1
    finally:
        decoder.set_tokens(None)
    assert runner.ran > 1
    assert decoder.tokens is None


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"gpus": 0}, "vae_decoder.gpus"),
        ({"deadline_s": 0}, "vae_decoder.deadline_s"),
        ({"small_tiles": True}, "small_tiles=true needs gpus of 2 or more, not gpus=1"),
        ({"gpus": 2, "num_cpus": 0}, "gpus=2 ranks need num_cpus or num_gpus above 0"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config({f"vae_decoder.{name}": value for name, value in values.items()})


def test_gpus_of_all_ranks_are_counted() -> None:
    config = load_config({"vae_decoder.gpus": 3, "vae_decoder.num_gpus": 1, "denoiser.num_gpus": 1})
    with pytest.raises(ConfigError, match=r"vae_decoder.num_gpus=1, vae_decoder.gpus=3: 4 GPUs are needed .* has 3"):
        check_gpus(config, 3)
    check_gpus(config, 4)
    check_gpus(load_config({"vae_decoder.gpus": 3}), 0)


def test_where_ranks_are_placed() -> None:
    alone = decoder_placement(VAEDecoderConfig(num_gpus=1))
    assert alone == {"ray_actor_options": {"num_cpus": 0.2, "num_gpus": 1}}
    shared = decoder_placement(VAEDecoderConfig(num_gpus=1, gpus=3))
    assert shared["ray_actor_options"] == alone["ray_actor_options"]
    assert shared["placement_group_bundles"] == [{"CPU": 0.2, "GPU": 1}] * 3
    assert shared["placement_group_strategy"] == "STRICT_PACK"
    assert decoder_placement(VAEDecoderConfig(gpus=2))["placement_group_bundles"] == [{"CPU": 0.2}] * 2


def test_cpus_of_all_ranks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    one, many = (local._num_cpus(load_config({"vae_decoder.gpus": gpus})) for gpus in (1, 64))
    assert many - one in (12, 13)  # 63 of 0.2, in whole ones


def test_files_of_a_guest_take_no_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bound: dict[str, dict[str, Any]] = {}

    def record(cls: type, **options: Any) -> Any:
        bound[options["name"]] = options
        return made(cls, **options)

    made = app._deployment
    monkeypatch.setattr(app, "_deployment", record)
    models = [ModelConfig(path=str(save_sana(tmp_path / "sana"))), ModelConfig(path="tiny")]
    vae = VAEDecoderConfig(gpus=2, num_gpus=1, small_tiles=True)
    app.build_app(Config(models=models, vae_decoder=vae))
    assert "placement_group_bundles" not in bound["VAEDecoder-sana"]
    assert bound["VAEDecoder-sana"]["ray_actor_options"]["num_gpus"] == 0
    assert len(bound["VAEDecoder-tiny"]["placement_group_bundles"]) == 2


def test_two_ranks_on_one_gpu_are_refused() -> None:
    def places(*gpus: str) -> list[Place]:
        return [Place("n", "127.0.0.1", i, (gpu,)) for i, gpu in enumerate(gpus)]

    config = VAEDecoderConfig(gpus=3, num_gpus=0.4)
    check_apart(places("0", "1", "2"), config)
    check_apart([Place("n", "127.0.0.1", i, ()) for i in range(3)], config)
    check_apart([Place(str(i), "127.0.0.1", i, ("0",)) for i in range(3)], config)
    with pytest.raises(ConfigError, match=r"num_gpus=0.4: ranks 0 and 2 of vae_decoder.gpus=3 were placed on one GPU"):
        check_apart(places("0", "1", "0"), config)
