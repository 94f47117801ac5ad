"""Every family and task over real HTTP, with the `openai` client: one server, many models, files decoded again.

Without Ray, which would start four processes a model: `test_shared.py` and `test_end_to_end.py` have that.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image
from tests.families.kit import Case, Model, all_models
from tests.in_process import serving

from raydiance.models.spec import Spec
from raydiance.serve import media
from raydiance.serve.config import load_config

pytestmark = pytest.mark.filterwarnings("ignore:.*(videos|Videos|Sora).*:DeprecationWarning")
SERVED = ("flux-dev", "flux-schnell", "flux-kontext", "hidream-fast", "wan-t2v-a14b", "wan-i2v-a14b", "wan-vace", "ltx")
MODELS = {m.name: m for m in all_models() if m.name in SERVED}
CASES = [pytest.param(m, c, id=f"{m.name}-{c.id}") for m in MODELS.values() for c in m.cases]
SAME_PIXELS = 30.0  # dB between frames through a video codec and those that went in


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("families")
    models = [
        {"path": str(m.folder), "name": m.name, "components": dict(m.options.components)} for m in MODELS.values()
    ]
    config = load_config(
        {
            "models": models,
            "denoiser.num_threads": 1,
            "storage.database": f"sqlite:///{folder}/jobs.db",
            "storage.artifacts": f"{folder}/artifacts",
        }
    )
    with serving(config) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as made:
        yield made


def png(image: Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def inputs_of(case: Case) -> dict[str, Any]:
    """What the case brings along, as fields: pictures as PNG, videos as MP4."""
    if case.inputs is None:
        return {}
    fields: dict[str, Any] = {}
    for role, images in case.inputs.images.items():
        urls = [png(image) for image in images]
        fields[role] = urls if role == "reference" else urls[0]
    if case.inputs.video is not None:
        data = media.encode_video([case.inputs.video], case.spec.fps)
        fields["video"] = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    if case.inputs.mask is not None:
        fields["mask"] = png(Image.fromarray(case.inputs.mask[0]))
    return fields


def parameters_of(model: Model, spec: Spec) -> dict[str, Any]:
    card = model.studio.denoiser.card
    values: dict[str, Any] = {"seed": spec.seed, "num_inference_steps": spec.num_inference_steps, **spec.extra}
    if card.has_guidance:
        values["guidance_scale"] = spec.guidance_scale
    if card.uses_negative(spec):
        values["negative_prompt"] = spec.negative_prompt
    if spec.task in card.strength_tasks:
        values["strength"] = spec.strength
    if spec.is_video:
        values |= {"num_frames": spec.num_frames, "fps": spec.fps}
        if card.has_audio:
            values["audio"] = spec.audio
    return values


def generate(client: openai.OpenAI, model: Model, case: Case) -> bytes:
    """The file that comes back, whatever the route of the task is."""
    spec = case.spec
    size, given = f"{spec.width}x{spec.height}", inputs_of(case)
    body = {"model": model.name, "prompt": spec.prompt, "size": size, **parameters_of(model, spec)}
    if not spec.is_video:
        extra = parameters_of(model, spec)
        if not given:
            made = client.images.generate(model=model.name, prompt=spec.prompt, size=size, extra_body=extra)
        else:
            [image] = list(given.values())
            picture = base64.b64decode((image[0] if isinstance(image, list) else image).split(",")[1])
            file = ("image.png", picture, "image/png")
            made = client.images.edit(model=model.name, prompt=spec.prompt, image=file, size=size, extra_body=extra)
        return base64.b64decode(made.data[0].b64_json)
    route = "/videos/edits" if "video" in given else "/videos"
    if route == "/videos" and not given:
        video = client.videos.create_and_poll(
            model=model.name, prompt=spec.prompt, size=size, extra_body=parameters_of(model, spec)
        )
    else:
        made_video: Any = client.post(route, body={**body, **given}, cast_to=object)
        video = client.videos.poll(made_video["id"])
    assert video.status == "completed", video.error
    return client.videos.download_content(video.id).read()


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / max(np.mean((a.astype(float) - b) ** 2), 1e-9)))


def test_every_family_is_served() -> None:
    assert set(MODELS) == set(SERVED)


@pytest.mark.parametrize(("model", "case"), CASES)
def test_a_request_gives_what_it_gives_in_process(client: openai.OpenAI, model: Model, case: Case) -> None:
    data, spec = generate(client, model, case), case.spec
    expected = model.studio.frames(case)
    if not spec.is_video:
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), expected[0])
        return
    frames, fps = media.decode_video(data)
    assert (frames.shape, fps) == ((spec.num_frames, spec.height, spec.width, 3), spec.fps)
    if case.inputs is None or case.inputs.video is None:  # what came through a codec is no longer the same video
        own = media.decode_video(media.encode_video([expected], spec.fps))[0]
        assert psnr(frames, own) >= SAME_PIXELS
    sound = media.decode_sound(data)
    assert (sound is not None) == spec.audio
    if sound is not None:
        seconds = spec.num_frames / spec.fps
        assert sound.samples.shape[0] == 2
        assert abs(sound.samples.shape[1] / sound.sample_rate - seconds) <= 1024 / sound.sample_rate


@pytest.mark.parametrize(
    ("model", "extra", "field"),
    [
        ("flux-schnell", {"guidance_scale": 3.0}, "guidance_scale"),
        ("flux-dev", {"negative_prompt": "a square"}, "negative_prompt"),
        ("flux-dev", {"stg_scale": 1.0}, "stg_scale"),
        ("hidream-fast", {"true_cfg_scale": 2.0}, "true_cfg_scale"),
        ("flux-kontext", {"strength": 0.5}, "strength"),
    ],
)
def test_what_a_family_cannot_honour_is_refused(client: openai.OpenAI, model: str, extra: Any, field: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(model=model, prompt="a red circle", extra_body=extra)
    assert caught.value.param == field


def test_models_say_what_they_take(client: openai.OpenAI) -> None:
    served = {model.id: model for model in client.models.list()}
    assert set(served) == set(SERVED)
    for name, model in MODELS.items():
        assert served[name].tasks == list(model.studio.denoiser.card.tasks)  # type: ignore[attr-defined]
