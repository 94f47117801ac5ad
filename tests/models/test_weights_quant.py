"""Weights in fewer bits: what is asked of the libraries, and what they compute where their packages are installed."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5EncoderModel

from raydiance.models import weights_quant
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.models.weights import load_component
from raydiance.models.weights_check import check_weights

NAME = "transformer"
INT8 = {"backend": "torchao", "quant_type": "Int8WeightOnlyConfig"}
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
ignores_their_warnings = pytest.mark.filterwarnings("ignore")  # torchao's own, of its imports


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer of widths that quantisers take."""
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=32, in_channels=4, out_channels=4, text_dim=64, freq_dim=64,
        ffn_dim=128, num_layers=2, rope_max_seq_len=64,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("quantised")
    model.save_pretrained(folder / NAME)
    return folder


@torch.no_grad()
def output(model: WanTransformer3DModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 4, 1, 4, 6, generator=generator).to(model.dtype)
    embeds = torch.randn(1, 5, 64, generator=generator).to(model.dtype)
    return model(latents, torch.tensor([500.0]), embeds, return_dict=False)[0].float()


def load(folder: Path, **options: object) -> WanTransformer3DModel:
    return load_component(WanTransformer3DModel, folder, NAME, LoadOptions(**options))


@pytest.mark.parametrize("backend", ["torchao", "bitsandbytes"])
def test_a_package_that_is_missing_is_named(folder, monkeypatch, backend):
    monkeypatch.setattr(weights_quant, "find_spec", lambda name: None)
    with pytest.raises(
        CheckpointError, match=rf"quantization\.{NAME} needs the package {backend}.*pip install {backend}"
    ):
        load(folder, quantization={NAME: {"backend": backend}})


def test_gguf_needs_its_package(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(weights_quant, "find_spec", lambda name: None)
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(CheckpointError, match=r"model\.gguf needs the package gguf"):
        load(folder, components={NAME: str(file)})


def test_gguf_is_for_classes_that_diffusers_loads_from_a_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(weights_quant, "find_spec", lambda name: object())
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(CheckpointError, match="T5EncoderModel cannot be loaded from a GGUF file"):
        load_component(T5EncoderModel, folder, NAME, LoadOptions(components={NAME: str(file)}))
    with pytest.raises(CheckpointError, match=r"no config\.json, which model\.gguf is loaded with"):
        load_component(WanTransformer3DModel, tmp_path, NAME, LoadOptions(components={NAME: str(file)}))


def test_unknown_backends_are_refused(folder):
    for options in ({}, {"backend": "magic"}):
        with pytest.raises(CheckpointError, match=r"quantization\.transformer: backend=.* is not one of torchao, bits"):
            load(folder, quantization={NAME: options})


@pytest.mark.parametrize("error", [ImportError("install it"), RuntimeError("No GPU found")])
def test_what_a_quantiser_lacks_is_said(folder, monkeypatch, error):
    def from_pretrained(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(WanTransformer3DModel, "from_pretrained", from_pretrained)
    with pytest.raises(CheckpointError, match=rf"transformer cannot be loaded here: {error}"):
        load(folder)


def test_of_a_quantised_checkpoint_the_quantiser_names_the_parts(folder, tmp_path):
    """As bitsandbytes stores them: the weight in another shape, its statistics beside it."""
    component = Path(shutil.copytree(folder / NAME, tmp_path / NAME))
    config = json.loads((component / "config.json").read_text())
    quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (component / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}))
    [file] = component.glob("*.safetensors")
    weights = load_file(file)
    packed = "blocks.0.attn1.to_q.weight"
    weights[packed] = torch.zeros(weights[packed].numel() // 2, 1, dtype=torch.uint8)
    weights |= {f"{packed}.absmax": torch.zeros(4), f"{packed}.quant_map": torch.zeros(16)}
    save_file(weights, file)
    check_weights(component)
    save_file({**weights, "other.absmax": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match=r"of no use: other\.absmax"):
        check_weights(component)
    for part in (packed, f"{packed}.absmax", f"{packed}.quant_map"):
        del weights[part]
    save_file(weights, file)
    with pytest.raises(CheckpointError, match=rf"lacks weights: {packed}"):
        check_weights(component)


@needs_torchao
@ignores_their_warnings
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_weights_compute_nearly_the_same(folder, dtype):
    exact, quantised = load(folder), load(folder, dtype=dtype, quantization={NAME: INT8})
    weight = quantised.blocks[0].attn1.to_q.weight
    assert type(weight) is not torch.nn.Parameter
    error = (output(quantised) - output(exact)).norm() / output(exact).norm()
    assert 0 < error < 0.03


@needs_torchao
@ignores_their_warnings
def test_options_reach_torchao(folder):
    kept = {**INT8, "modules_to_not_convert": ["attn1"]}
    quantised = load(folder, quantization={NAME: kept})
    types = [type(getattr(quantised.blocks[0], a).to_q.weight).__name__ for a in ("attn1", "attn2")]
    assert types[0] == "Parameter" != types[1]
    for options, message in (
        ({"backend": "torchao", "quant_type": "int8"}, r"quant_type='int8' is no configuration of torchao"),
        ({"backend": "torchao"}, r"quant_type=None is no configuration"),
        ({**INT8, "groups": 3}, r"quantization\.transformer: .*groups"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load(folder, quantization={NAME: options})


@needs_torchao
@ignores_their_warnings
def test_a_text_encoder_in_int8_computes_nearly_the_same(tmp_path):
    torch.manual_seed(0)
    config = T5Config(vocab_size=16, d_model=64, d_kv=32, d_ff=128, num_layers=2, num_heads=2, dropout_rate=0.0)
    T5EncoderModel(config).save_pretrained(tmp_path / "text_encoder")

    def encoder(**options: object) -> T5EncoderModel:
        return load_component(T5EncoderModel, tmp_path, "text_encoder", LoadOptions(**options))

    def states(model: T5EncoderModel) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([[3, 5, 7, 1]])).last_hidden_state.float()

    quantised = encoder(quantization={"text_encoder": INT8})
    assert type(quantised.encoder.block[0].layer[0].SelfAttention.q.weight) is not torch.nn.Parameter
    error = (states(quantised) - states(encoder())).norm() / states(encoder()).norm()
    assert 0 < error < 0.03


@needs_torchao
@ignores_their_warnings
def test_a_checkpoint_that_is_quantised_already_is_loaded_as_it_is(folder, tmp_path):
    quantised = load(folder, dtype="bfloat16", quantization={NAME: INT8})
    quantised.save_pretrained(tmp_path / NAME)
    again = load(tmp_path, dtype="bfloat16")
    assert type(again.blocks[0].attn1.to_q.weight) is type(quantised.blocks[0].attn1.to_q.weight)
    assert torch.equal(output(again), output(quantised))


@needs_gguf
@ignores_their_warnings
def test_a_gguf_file_computes_nearly_the_same(folder, tmp_path):
    gguf = importlib.import_module("gguf")
    exact = load(folder)
    file = tmp_path / "model-Q8_0.gguf"
    writer = gguf.GGUFWriter(file, "wan")
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in exact.state_dict().items():
        numbers = copy.deepcopy(tensor.numpy())
        if tensor.ndim == 2 and tensor.shape[1] % 32 == 0 and ".to_" in name:
            writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    quantised = load(folder, components={NAME: str(file)})
    assert quantised.blocks[0].attn1.to_q.weight.dtype is torch.uint8
    error = (output(quantised) - output(exact)).norm() / output(exact).norm()
    assert 0 < error < 0.03
