"""What jobs have made: the files of their samples, and pictures of their videos, made when they are first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raydiance.serve import clips, media
from raydiance.serve.errors import Conflict, NotFound
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact, Job, JobState

SHEET_FRAMES = 25
DERIVED: dict[str, tuple[str, str, Callable[[bytes, int], bytes]]] = {
    "thumbnail": ("webp", "image/webp", lambda video, count: media.thumbnail(clips.pick(video, [count // 2]))),
    "spritesheet": ("jpg", "image/jpeg", lambda video, count: media.spritesheet(clips.pick(video, _spread(count)))),
}


async def content_of(job: Job, index: int, variant: str, artifacts: ArtifactStore) -> Artifact:
    """Raises NotFound (no such sample or variant, or nothing was made), Conflict (not finished)."""
    if not job.state.is_final:
        unfinished = f"{job.state.value} ({job.progress}%)"
        raise Conflict(f"job {job.id} is {unfinished}; its content comes when it completes", "id")
    if job.state is not JobState.COMPLETED:
        raise NotFound(f"job {job.id} is {job.state.value} and has no content", "id")
    found = job.find(index, variant)
    if found is None and job.kind == "video" and (content := job.find(index)) is not None:
        found = await _derive(content, variant, artifacts)
    if found is None:
        held = f"it has {len(job.specs)} sample(s)"
        raise NotFound(f"job {job.id} has no {variant} of index {index}; {held}", "index")
    return found


async def _derive(content: Artifact, variant: str, artifacts: ArtifactStore) -> Artifact | None:
    """A thumbnail or sprite sheet; None for another variant."""
    if variant not in DERIVED:
        return None
    suffix, content_type, make = DERIVED[variant]
    key = f"{content.key.rsplit('.', 1)[0]}-{variant}.{suffix}"
    try:
        size_bytes = await artifacts.size(key)
    except NotFound:
        video = await artifacts.get(content.key)
        data = await asyncio.to_thread(make, video, content.num_frames)
        await artifacts.put(key, data)
        size_bytes = len(data)
    update = {"key": key, "variant": variant, "content_type": content_type, "size_bytes": size_bytes}
    return content.model_copy(update={**update, "num_frames": 1, "fps": None})


def _spread(count: int) -> list[int]:
    """Up to `SHEET_FRAMES` of `count` frames, evenly from the first to the last."""
    shown = min(count, SHEET_FRAMES)
    return [round(i * (count - 1) / max(shown - 1, 1)) for i in range(shown)]
