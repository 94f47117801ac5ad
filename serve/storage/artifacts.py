"""Files in an object store: a local folder or S3. A key is a relative path of plain names; nothing else is let in."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.exceptions import NotFoundError as ObjectNotFound
from obstore.store import LocalStore, S3Store

from raydiance.serve.errors import ConfigError, InvalidRequest, NotFound, Unavailable

log = logging.getLogger(__name__)
MAX_KEY_CHARS = 512
_KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


class ArtifactStore:
    """Files by key. Writes are atomic: a key holds a whole file or none.

    Args:
        url: a folder (created), `file:///folder`, or `s3://bucket/prefix`.
        options: for S3, what obstore's `S3Store` takes (`endpoint`, `access_key_id`, `client_options`, …). What is not
            given comes from the `AWS_*` environment.

    Every method raises InvalidRequest for a malformed key, and Unavailable when the store does not work (its `code` is
    "storage_full" when a disk is full).

    Raises:
        ConfigError: the URL or an option is not supported, or the folder cannot be created.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._folder = None if url.startswith("s3://") else _local_folder(url, options)
        try:
            if self._folder is None:
                self._store: LocalStore | S3Store = S3Store.from_url(url, **options)
            else:
                self._store = LocalStore(self._folder, mkdir=True)
        except (BaseError, OSError, ValueError, TypeError) as e:
            raise ConfigError(f"storage.artifacts: cannot open '{url}': {_first_line(e)}") from e

    async def put(self, key: str, data: bytes) -> None:
        with _errors("write", check_key(key)):
            writing = asyncio.ensure_future(obstore.put_async(self._store, key, data))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait({writing})  # it cannot be called back: who deletes the file next must find it
                raise

    async def get(self, key: str) -> bytes:
        """Raises NotFound."""
        with _errors("read", check_key(key)):
            result = await obstore.get_async(self._store, key)
            return bytes(await result.bytes_async())

    async def size(self, key: str) -> int:
        """In bytes. Raises NotFound."""
        with _errors("read", check_key(key)):
            return (await obstore.head_async(self._store, key))["size"]

    async def read_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes `start` to `end`, without `end`; fewer where the file ends before.

        Raises:
            NotFound
            InvalidRequest: the range is empty or begins behind the end of the file.
        """
        await self._check_range(key, start, end)
        with _errors("read", key):
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))

    async def stream(self, key: str, start: int, end: int, chunk_bytes: int = 1 << 20) -> AsyncIterator[bytes]:
        """The same range piece by piece, most of them of about `chunk_bytes`. Raises as `read_range` does."""
        await self._check_range(key, start, end)
        with _errors("read", key):
            result = await obstore.get_async(self._store, key, options={"range": (start, end)})
            async for chunk in result.stream(min_chunk_size=chunk_bytes):
                yield bytes(chunk)

    async def delete(self, keys: Iterable[str]) -> None:
        """What does not exist is not missed."""
        for key in [check_key(k) for k in keys]:
            with _errors("delete", key):
                try:
                    await obstore.delete_async(self._store, key)
                except (ObjectNotFound, FileNotFoundError):
                    continue

    async def delete_prefix(self, prefix: str) -> None:
        """All files below `prefix/`, and what a process that died while writing left there."""
        with _errors("delete", check_key(prefix)):
            if self._folder is not None:
                await asyncio.to_thread(_remove_tree, self._folder / prefix)
                return
            async for page in obstore.list(self._store, prefix=f"{prefix}/"):
                await obstore.delete_async(self._store, [entry["path"] for entry in page])

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, float]]:
        """Key and time of writing (Unix seconds) of every file below `prefix/`."""
        with _errors("list", check_key(prefix)):
            async for page in obstore.list(self._store, prefix=f"{prefix}/"):
                for entry in page:
                    yield entry["path"], entry["last_modified"].timestamp()

    async def _check_range(self, key: str, start: int, end: int) -> None:
        size = await self.size(key)
        if not 0 <= start < min(end, size):
            raise InvalidRequest(f"bytes {start} to {end} are outside a file of {size} bytes", "range")


def check_key(key: str) -> str:
    """The key itself. Raises InvalidRequest unless it is plain names joined by `/`, none of them `.` or `..`."""
    names = key.split("/") if len(key) <= MAX_KEY_CHARS and _KEY.fullmatch(key) else [".."]
    if "." in names or ".." in names:
        raise InvalidRequest(f"{key[:80]!r} is no artifact key: names of A-Z a-z 0-9 . _ - joined by /", "key")
    return key


def _local_folder(url: str, options: dict[str, Any]) -> Path:
    path = url.removeprefix("file://")
    if "://" in path or not path:
        raise ConfigError(f"storage.artifacts: '{url}' is neither a folder nor s3://bucket/prefix")
    if options:
        raise ConfigError(f"storage.artifacts: a folder takes no options; got {', '.join(sorted(options))}")
    return Path(path).absolute()


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


@contextmanager
def _errors(verb: str, key: str) -> Iterator[None]:
    try:
        yield
    except (ObjectNotFound, FileNotFoundError) as e:
        raise NotFound(f"there is no artifact '{key}'") from e
    except (BaseError, OSError) as e:
        reason = _first_line(e)
        log.warning("cannot %s artifact %s: %s", verb, key, reason)
        if "No space left" in reason or "quota exceeded" in reason.lower():
            raise Unavailable("the artifact store is full", code="storage_full") from e
        raise Unavailable(f"the artifact store could not {verb} '{key}'", code="storage_failed") from e
