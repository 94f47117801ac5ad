"""Components from folders: what is compared before anything is read, and what a load costs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from safetensors.torch import load_file, save_file
from tests.checkpoints import save_wan
from tests.families.kit import all_models
from transformers import LlamaConfig, LlamaForCausalLM, UMT5EncoderModel

from raydiance.models import registry
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.models.weights import load_component, offload_groups
from raydiance.models.weights_check import check_weights
from raydiance.models.whole import check_whole

KINDS = {"transformer": WanTransformer3DModel, "text_encoder": UMT5EncoderModel, "vae": AutoencoderKLWan}
CUDA = LoadOptions(device="cuda")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wan(tmp_path_factory.mktemp("wan"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "wan"))


def weights_of(component: Path) -> Path:
    [file] = component.glob("*.safetensors")
    return file


def change(component: Path, values: Mapping[str, torch.Tensor | None]) -> None:
    """Sets weights, or drops them."""
    file = weights_of(component)
    weights = {**load_file(file), **values}
    save_file({k: v for k, v in weights.items() if v is not None}, file, metadata={"format": "pt"})


def names(component: Path) -> list[str]:
    return sorted(load_file(weights_of(component)))


@pytest.mark.parametrize("model", all_models(), ids=lambda m: m.name)
def test_whole_checkpoints_pass(model):
    sizes = check_whole(model.folder, model.options.components)
    assert {"transformer", "vae", "text_encoder"} <= set(sizes)
    assert all(sizes.values())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_missing_is_named(folder, name):
    dropped = names(folder / name)[1:6]
    change(folder / name, dict.fromkeys(dropped))
    with pytest.raises(CheckpointError) as error:
        check_weights(folder / name, KINDS[name])
    assert str(error.value) == f"{folder / name} lacks weights: {', '.join(dropped[:3])}, and 2 more"


@pytest.mark.parametrize("name", KINDS)
def test_what_is_of_no_use_is_named(folder, name):
    change(folder / name, {"of.no.use": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"has weights of no use: of\.no\.use$"):
        check_weights(folder / name, KINDS[name])


@pytest.mark.parametrize("name", KINDS)
def test_other_shapes_are_named_with_both(folder, name):
    file = weights_of(folder / name)
    wrong = next(k for k, v in sorted(load_file(file).items()) if v.ndim == 2 or name == "vae")
    expected = load_file(file)[wrong].shape
    change(folder / name, {wrong: torch.zeros(3, 5)})
    with pytest.raises(CheckpointError) as error:
        load_component(KINDS[name], folder, name, LoadOptions())
    assert f"has shapes: {wrong} is 3x5 and not {'x'.join(map(str, expected))}" in str(error.value)


def test_it_is_refused_before_a_weight_is_read(folder, monkeypatch):
    change(folder / "transformer", {"of.no.use": torch.zeros(2)})
    monkeypatch.setattr(WanTransformer3DModel, "from_pretrained", None)
    with pytest.raises(CheckpointError, match="of no use"):
        registry.load(folder, "denoise", "wan")


def test_a_config_of_another_model(folder):
    shutil.copy(folder / "vae/config.json", folder / "transformer/config.json")
    with pytest.raises(CheckpointError, match="transformer lacks weights"):
        check_weights(folder / "transformer")
    (folder / "transformer/config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="names no class"):
        check_weights(folder / "transformer")
    (folder / "transformer/config.json").write_text(
        json.dumps({"_class_name": "WanTransformer3DModel", "patch_size": 2})
    )
    with pytest.raises(CheckpointError, match=r"config\.json makes no WanTransformer3DModel"):
        check_weights(folder / "transformer")


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_weight_need_not_be_there_and_an_untied_one_must(tmp_path, tied):
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=tied,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    change(tmp_path, {"lm_head.weight": None})
    if tied:
        check_weights(tmp_path)
    else:
        with pytest.raises(CheckpointError, match=r"lacks weights: lm_head\.weight"):
            check_weights(tmp_path)


def test_names_that_the_class_ignores_are_no_mistake(folder):
    class Ignoring(WanTransformer3DModel):
        _keys_to_ignore_on_load_unexpected = (r"^of\.no",)

    change(folder / "transformer", {"of.no.use": torch.zeros(2)})
    check_weights(folder / "transformer", Ignoring)


@pytest.mark.parametrize("name", KINDS)
def test_shards_are_loaded_and_a_missing_one_is_named(folder, tmp_path, name):
    whole = load_component(KINDS[name], folder, name, LoadOptions())
    whole.save_pretrained(tmp_path / "sharded" / name, max_shard_size="12KB")
    sharded = load_component(KINDS[name], tmp_path / "sharded", name, LoadOptions())
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), sharded.parameters(), strict=True))
    shard = sorted((tmp_path / "sharded" / name).glob("*-of-*"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"lacks the shard {shard.name}"):
        load_component(KINDS[name], tmp_path / "sharded", name, LoadOptions())


@pytest.mark.parametrize("size", [None, "12KB"])
@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_of_one_variant_is_loaded(folder, tmp_path, name, size):
    whole = load_component(KINDS[name], folder, name, LoadOptions())
    whole.save_pretrained(tmp_path / "half" / name, variant="fp16", **({"max_shard_size": size} if size else {}))
    half = load_component(KINDS[name], tmp_path / "half", name, LoadOptions())
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), half.parameters(), strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_is_that_of_the_weights(folder, dtype):
    module = load_component(WanTransformer3DModel, folder, "transformer", LoadOptions(dtype=dtype))
    assert module.patch_embedding.weight.dtype is getattr(torch, dtype)
    with pytest.raises(CheckpointError, match="dtype int8 is not supported"):
        load_component(WanTransformer3DModel, folder, "transformer", LoadOptions(dtype="int8"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offload": "group"}, "offload=group .* the device is cpu"),
        ({"device_map": "balanced"}, "device_map=balanced .* the device is cpu"),
        ({"device": "cuda", "device_map": "balanced", "offload": "group"}, "both say where weights are"),
    ],
)
def test_placements_that_cannot_be_are_refused(folder, options, message):
    with pytest.raises(CheckpointError, match=message):
        load_component(WanTransformer3DModel, folder, "transformer", LoadOptions(**options))


def test_a_device_map_is_the_loaders(folder, monkeypatch):
    """What can be told without a GPU: it is handed over, and nothing moves the module afterwards."""
    asked = {}

    def from_pretrained(source, **arguments):
        asked.update(arguments)
        return WanTransformer3DModel.from_config(WanTransformer3DModel.load_config(source)), {"missing_keys": []}

    monkeypatch.setattr(WanTransformer3DModel, "from_pretrained", from_pretrained)
    options = LoadOptions(device="cuda", device_map="balanced")
    assert load_component(WanTransformer3DModel, folder, "transformer", options).device.type == "cpu"
    assert asked["device_map"] == "balanced"


def test_group_offloading_computes_the_same(folder):
    """On the one device that is here; streams need another."""
    transformer = load_component(WanTransformer3DModel, folder, "transformer", LoadOptions())
    encoder = load_component(UMT5EncoderModel, folder, "text_encoder", LoadOptions())
    vae = load_component(AutoencoderKLWan, folder, "vae", LoadOptions())
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 4, 2, 4, 6, generator=generator)
    embeds = torch.randn(1, 12, 16, generator=generator)

    def outputs() -> list[torch.Tensor]:
        with torch.no_grad():
            return [
                transformer(latents, torch.tensor([500.0]), embeds, return_dict=False)[0],
                encoder(torch.tensor([[3, 5, 1]])).last_hidden_state,
                vae.decode(latents, return_dict=False)[0],
            ]

    before = outputs()
    for module in (transformer, encoder, vae):
        offload_groups(module, torch.device("cpu"), ahead=False)
    assert hasattr(vae.decoder.conv_in, "_diffusers_hook")
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(before, outputs(), strict=True))


MEASURE = """
import json, sys
from pathlib import Path
import diffusers, transformers
from raydiance.models.options import LoadOptions
from raydiance.models.weights import load_component

def memory():
    lines = [line.partition(":") for line in Path("/proc/self/status").read_text().splitlines()]
    return {k: int(v.split()[0]) * 1024 for k, _, v in lines if k in ("VmHWM", "RssAnon")}

library, kind, folder, name = sys.argv[1:]
before = memory()
module = load_component(getattr({"d": diffusers, "t": transformers}[library], kind), Path(folder), name, LoadOptions())
total = sum(float(p.sum()) for p in module.parameters())
after = memory()
print(json.dumps({k: after[k] - before[k] for k in before}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize(
    ("library", "kind", "name"),
    [("d", "WanTransformer3DModel", "transformer"), ("t", "T5EncoderModel", "text_encoder")],
)
@pytest.mark.slow
def test_weights_are_mapped_and_not_copied(tmp_path, library, kind, name):
    if library == "d":
        from diffusers import WanTransformer3DModel as Kind

        module = Kind(
            num_attention_heads=4, attention_head_dim=64, in_channels=4, out_channels=4, text_dim=16, freq_dim=32,
            ffn_dim=32768, num_layers=3, rope_max_seq_len=64,
        )  # fmt: skip
    else:
        from transformers import T5Config, T5EncoderModel

        module = T5EncoderModel(T5Config(vocab_size=1000, d_model=512, d_kv=64, d_ff=24576, num_layers=2, num_heads=8))
    module.save_pretrained(tmp_path / name)
    size = weights_of(tmp_path / name).stat().st_size
    assert size > 190e6
    command = [sys.executable, "-c", MEASURE, library, kind, str(tmp_path), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout)
    assert grown["RssAnon"] < 0.2 * size  # pages of the file, which other processes share
    assert grown["VmHWM"] < 1.3 * size
