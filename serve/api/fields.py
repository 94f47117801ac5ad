"""Fields of a body that carry pictures, masks and videos: by the same names on every route, in forms and JSON. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raydiance.models.inputs import ImageRole
from raydiance.serve.api.body import Body
from raydiance.serve.complaints import shorten, shown
from raydiance.serve.errors import InvalidRequest
from raydiance.serve.request import ImageInput, MaskInput, Source, VideoInput

File = ImageInput | MaskInput | VideoInput
# role of the picture in a field; without one it takes that of the task
PICTURES: Final[Mapping[str, ImageRole | None]] = {
    "image": None,
    "input_reference": None,
    "first_frame": "first_frame",
    "last_frame": "last_frame",
    "init": "init",
    "reference": "reference",
}
FIELDS: Final = (*PICTURES, "mask", "video")
REPEATED: Final = ("image", "reference")
# keys of a mapping in place of a URL, and the source's name for them
KEYS: Final[Mapping[str, str]] = {"image_url": "url", "url": "url", "b64": "b64"}


@dataclass
class Given:
    """Args:
    inputs: in the order of `FIELDS`.
    fields: the field that each came in.
    """

    inputs: list[File] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)

    def add(self, name: str, source: Source) -> None:
        self.inputs.append(_input(name, source))
        self.fields.append(name)

    def names(self, default: str) -> dict[str, str]:
        """Native field -> wire field, for `errors.wire_names`; `default` where an input is missing."""
        names = {"inputs": default, "task": self.fields[0] if self.fields else "model"}
        for i, name in enumerate(self.fields):
            names |= {f"inputs.{i}": name, f"inputs.{i}.source": name}
        return names


def take_inputs(body: Body) -> Given:
    """Takes them out of the body. Raises InvalidRequest, also for a file in any other field."""
    given = Given()
    for name in FIELDS:
        files, value = body.files.pop(name, None), body.fields.pop(name, None)
        if files is not None and value is not None:
            raise InvalidRequest(f"{name} is given as a file and as a field; give one", name)
        for data in _several(name, files, "files"):
            if not data:
                raise InvalidRequest(f"the file in {name} is empty", name)
            given.add(name, Source(b64=base64.b64encode(data).decode()))
        for item in _several(name, value, "values"):
            given.add(name, _source(name, item))
    refuse_files(body, *FIELDS)
    return given


def take_video_id(body: Body) -> str | None:
    """The id in `{"video": {"id": …}}`, taken out of the body; None where the video is given otherwise."""
    value = body.fields.get("video")
    if not isinstance(value, dict) or "id" not in value:
        return None
    if "video" in body.files or len(value) > 1:
        raise InvalidRequest("video is given by id and otherwise; give one", "video")
    del body.fields["video"]
    if not isinstance(value["id"], str):
        raise InvalidRequest(f"video.id must be the id of a video (got {shown(value['id'])})", "video")
    return str(value["id"])


def refuse_files(body: Body, *known: str) -> None:
    for name in body.files:
        also = f"; known: {', '.join(known)}" if known else ""
        raise InvalidRequest(f"unknown file field '{shorten(name)}'{also}", shorten(name), "unknown_parameter")


def _several(name: str, value: Any, what: str) -> list[Any]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if len(values) > 1 and name not in REPEATED:
        raise InvalidRequest(f"{len(values)} {what} were sent as {name}; the limit is 1", name)
    return values


def _input(name: str, source: Source) -> File:
    if name in PICTURES:
        return ImageInput(role=PICTURES[name], source=source)
    return MaskInput(source=source) if name == "mask" else VideoInput(source=source)


def _source(name: str, value: Any) -> Source:
    """From a URL, or a mapping such as OpenAI's `{"image_url": URL}`."""
    form = 'a file, a URL, {"url": URL} or {"b64": BASE64}'
    kind = "url"
    if isinstance(value, dict):
        if unknown := set(value) - set(KEYS):
            key = sorted(unknown)[0]
            raise InvalidRequest(f"{name}.{shorten(key)} is refused: {_why(key)}", f"{name}.{shorten(key)}")
        if len(value) != 1:
            raise InvalidRequest(f"{name} must be {form}", name)
        [(key, value)] = value.items()
        kind = KEYS[key]
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} must be {form} (got {shown(value)})", name)
    if kind == "url" and ":" not in value:
        by_id = ', {"id": ID}' if name == "video" else ""
        raise InvalidRequest(f"{name} must be {form}{by_id} (got {shown(value)})", name)
    return Source(b64=value) if kind == "b64" else Source(url=value)


def _why(key: str) -> str:
    if key == "file_id":
        return "there is no files API; send the file"
    if key == "id":
        return "only the video of /v1/videos/edits and /v1/videos/extensions is given by id"
    return f"known are {', '.join(KEYS)}"
