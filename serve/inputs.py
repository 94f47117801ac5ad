"""What clients send along: fetched or decoded, checked, and stored as PNG before the job is written."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from contextlib import suppress

from raydiance.serve import imaging, netguard
from raydiance.serve.config import LimitsConfig, NetworkConfig
from raydiance.serve.errors import InvalidRequest, NotFound, RaydianceError, TooLarge, Unavailable
from raydiance.serve.request import GenerationRequest, ImageInput, Input, Source, TextInput
from raydiance.serve.storage.artifacts import ArtifactStore

_DATA_URL = re.compile(r"data:[^,;]*(?:;[^,;]*)*;base64,", re.IGNORECASE)


async def store_inputs(
    request: GenerationRequest,
    *,
    prefix: str,
    limits: LimitsConfig,
    network: NetworkConfig,
    artifacts: ArtifactStore,
    allow_artifacts: bool = False,
) -> GenerationRequest:
    """The request with every image stored as `{prefix}/input-{i}.png` and named by its artifact key.

    Each job owns copies of its own, so that deleting one job never takes another's input away. When one input is
    refused, none stays stored. The webhook's URL is checked as far as that needs no network.

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
            if not isinstance(item, ImageInput):
                raise InvalidRequest(f"'{item.type}' inputs are not taken", f"inputs.{i}.type")
            field = f"inputs.{i}.source"
            if item.source.artifact is not None:
                data = await _read_artifact(item.source.artifact, artifacts, allow_artifacts, field)
            else:
                data = await _receive(item.source, limits, network, field)
            png = await asyncio.to_thread(_to_png, data, limits, field)
            key = f"{prefix}/input-{i}.png"
            await artifacts.put(key, png)
            keys.append(key)
            stored.append(item.model_copy(update={"source": Source(artifact=key)}))
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


async def _receive(source: Source, limits: LimitsConfig, network: NetworkConfig, field: str) -> bytes:
    if source.b64 is not None:
        return _decode(source.b64, limits, field)
    url = source.url or ""
    if url[:5].lower() == "data:":
        header = _DATA_URL.match(url)
        if header is None:
            raise InvalidRequest("a data: URL must be base64: data:image/png;base64,…", field)
        return _decode(url[header.end() :], limits, field)
    data, _ = await netguard.fetch(
        url,
        max_bytes=limits.max_image_bytes,
        timeout_s=limits.fetch_timeout_s,
        allow_hosts=network.allow_hosts,
        field=field,
    )
    return data


def _decode(text: str, limits: LimitsConfig, field: str) -> bytes:
    if len(text) * 3 // 4 > limits.max_image_bytes * 1.1:  # line breaks may come on top
        raise TooLarge(f"the image has more than {limits.max_image_bytes} bytes", field)
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as e:
        raise InvalidRequest("not valid base64", field) from e


def _to_png(data: bytes, limits: LimitsConfig, field: str) -> bytes:
    return imaging.encode_picture(imaging.open_image(data, limits, field), "png")
