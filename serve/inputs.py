"""What clients send along: fetched or decoded, checked, and stored before the job is written."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from contextlib import suppress

from raydiance.serve import clips, imaging, netguard
from raydiance.serve.containers import container_of
from raydiance.serve.edge_config import LimitsConfig, NetworkConfig
from raydiance.serve.errors import InvalidRequest, NotFound, RaydianceError, TooLarge, Unavailable
from raydiance.serve.request import GenerationRequest, ImageInput, Input, MaskInput, Source, TextInput, VideoInput
from raydiance.serve.storage.artifacts import ArtifactStore

_DATA_URL = re.compile(r"data:[^,;]*(?:;[^,;]*)*;base64,", re.IGNORECASE)
File = ImageInput | MaskInput | VideoInput


async def store_inputs(
    request: GenerationRequest,
    *,
    prefix: str,
    limits: LimitsConfig,
    network: NetworkConfig,
    artifacts: ArtifactStore,
    allow_artifacts: bool = False,
) -> GenerationRequest:
    """The request with every file stored as `{prefix}/input-{i}.{suffix}` and named by its artifact key.

    Pictures are stored as PNG, videos as they came. Each job owns copies of its own, so that deleting one job never
    takes another's input away. When one input is refused, none stays stored. The webhook's URL is checked as far as
    that needs no network.

    Args:
        prefix: the job's place in the store; see `artifact_prefix`.
        allow_artifacts: whether sources may name artifacts. Never for a client's own: it could read any job's.

    Raises:
        InvalidRequest, TooLarge, UnsupportedMedia: an input cannot be used; `param` is `inputs.{i}.source`.
        Unavailable: the artifact store does not work.
    """
    if request.webhook is not None:
        netguard.check_url(request.webhook, network.allow_hosts, "webhook")
    stored: list[Input] = []
    keys: list[str] = []
    try:
        for i, item in enumerate(request.inputs):
            if isinstance(item, TextInput):
                stored.append(item)
                continue
            if isinstance(item, VideoInput) and item.clip is not None and not allow_artifacts:
                raise InvalidRequest("clip is told by the server, and not taken", f"inputs.{i}.clip")
            field = f"inputs.{i}.source"
            if item.source.artifact is not None:
                data = await _read_artifact(item.source.artifact, artifacts, allow_artifacts, field)
            else:
                data = await _receive(item, limits, network, field)
            checked, suffix, data = await asyncio.to_thread(_check, item, data, limits, field)
            key = f"{prefix}/input-{i}.{suffix}"
            await artifacts.put(key, data)
            keys.append(key)
            stored.append(checked.model_copy(update={"source": Source(artifact=key)}))
    except RaydianceError:
        with suppress(Unavailable):
            await artifacts.delete(keys)
        raise
    return request.model_copy(update={"inputs": stored})


async def _read_artifact(key: str, artifacts: ArtifactStore, allowed: bool, field: str) -> bytes:
    if not allowed:
        raise InvalidRequest("give url or b64; artifacts cannot be named here", field)
    try:
        return await artifacts.get(key)
    except (InvalidRequest, NotFound) as e:
        raise InvalidRequest(e.message, field) from e


async def _receive(item: File, limits: LimitsConfig, network: NetworkConfig, field: str) -> bytes:
    max_bytes = limits.max_image_bytes if isinstance(item, ImageInput) else limits.max_video_bytes
    if item.source.b64 is not None:
        return _decode(item.source.b64, item.type, max_bytes, field)
    url = item.source.url or ""
    if url[:5].lower() == "data:":
        header = _DATA_URL.match(url)
        if header is None:
            raise InvalidRequest(f"a data: URL must be base64: data:{_EXAMPLES[item.type]};base64,…", field)
        return _decode(url[header.end() :], item.type, max_bytes, field)
    data, _ = await netguard.fetch(
        url,
        max_bytes=max_bytes,
        timeout_s=limits.fetch_timeout_s,
        allow_hosts=network.allow_hosts,
        field=field,
    )
    return data


_EXAMPLES = {"image": "image/png", "mask": "image/png", "video": "video/mp4"}


def _decode(text: str, what: str, max_bytes: int, field: str) -> bytes:
    if len(text) * 3 // 4 > max_bytes * 1.1:  # line breaks may come on top
        raise TooLarge(f"the {what} has more than {max_bytes} bytes", field)
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as e:
        raise InvalidRequest("not valid base64", field) from e


def _check(item: File, data: bytes, limits: LimitsConfig, field: str) -> tuple[File, str, bytes]:
    """The input as it is kept: itself, its file's suffix and content."""
    if not data:
        raise InvalidRequest(f"the {item.type} is empty", field)
    if isinstance(item, VideoInput):
        clip = clips.check_clip(data, limits, field)
        return item.model_copy(update={"clip": clip}), str(container_of(data)), data
    if isinstance(item, ImageInput):
        return item, "png", imaging.encode_picture(imaging.open_image(data, limits, field), "png")
    container = container_of(data)
    if container is not None:
        clips.check_clip(data, limits, field)
        return item, container, data
    return item, "png", imaging.encode_picture(imaging.open_mask(data, limits, field), "png")
