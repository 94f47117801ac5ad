from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from raydiance.serve.errors import ConfigError, InvalidRequest, NotFound, Unavailable
from raydiance.serve.storage.artifacts import ArtifactStore, check_key

KEY = "jobs/video_1/0.mp4"
DATA = bytes(range(256)) * 40


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "new" / "artifacts"))


async def _collect(store: ArtifactStore, start: int, end: int, chunk_bytes: int) -> list[bytes]:
    return [c async for c in store.stream(KEY, start, end, chunk_bytes)]


def test_put_get_size(store: ArtifactStore, tmp_path: Path) -> None:
    async def main() -> None:
        await store.put(KEY, b"first")
        await store.put(KEY, DATA)
        assert await store.get(KEY) == DATA
        assert await store.size(KEY) == len(DATA)
        await store.put("empty", b"")
        assert await store.get("empty") == b""

    asyncio.run(main())
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["0.mp4", "empty"], "nothing else is left"


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    asyncio.run(ArtifactStore(f"file://{tmp_path}").put("a", b"1"))
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 10_240), (255, 257), (10_239, 10_240), (10_000, 99_999)])
def test_ranges(store: ArtifactStore, start: int, end: int) -> None:
    async def main() -> tuple[bytes, list[bytes]]:
        await store.put(KEY, DATA)
        return await store.read_range(KEY, start, end), await _collect(store, start, end, 1000)

    read, chunks = asyncio.run(main())
    assert read == DATA[start:end]
    assert b"".join(chunks) == DATA[start:end]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 4), (-1, 4), (10_240, 10_241)])
def test_ranges_outside_are_refused(store: ArtifactStore, start: int, end: int) -> None:
    async def main() -> None:
        await store.put(KEY, DATA)
        with pytest.raises(InvalidRequest, match="10240 bytes"):
            await store.read_range(KEY, start, end)
        with pytest.raises(InvalidRequest, match="10240 bytes"):
            await _collect(store, start, end, 1000)

    asyncio.run(main())


def test_a_large_file_comes_in_pieces(store: ArtifactStore) -> None:
    async def main() -> list[bytes]:
        await store.put(KEY, bytes(5 << 20))
        return await _collect(store, 0, 5 << 20, 1 << 20)

    chunks = asyncio.run(main())
    assert sum(map(len, chunks)) == 5 << 20
    assert max(map(len, chunks)) <= 2 << 20


def test_a_stream_may_be_left_early(store: ArtifactStore) -> None:
    async def main() -> None:
        await store.put(KEY, bytes(5 << 20))
        stream = store.stream(KEY, 0, 5 << 20, 1 << 16)
        assert await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await store.delete([KEY])

    asyncio.run(main())


def test_what_is_missing_is_not_found(store: ArtifactStore) -> None:
    async def main() -> None:
        await store.put(KEY, DATA)
        for key in ("nothing", "jobs/video_1"):
            for call in (store.get(key), store.size(key), store.read_range(key, 0, 1)):
                with pytest.raises(NotFound, match=key):
                    await call

    asyncio.run(main())


def test_delete(store: ArtifactStore) -> None:
    async def main() -> None:
        for key in ("jobs/a/1", "jobs/a/b/2", "jobs/ab/3"):
            await store.put(key, b"x")
        await store.delete(["jobs/ab/3", "jobs/none"])
        with pytest.raises(NotFound):
            await store.size("jobs/ab/3")
        await store.put("jobs/ab/3", b"x")
        await store.delete_prefix("jobs/a")
        await store.delete_prefix("jobs/a")
        for key in ("jobs/a/1", "jobs/a/b/2"):
            with pytest.raises(NotFound):
                await store.get(key)
        assert await store.get("jobs/ab/3") == b"x", "a prefix ends at a slash"

    asyncio.run(main())


def test_delete_prefix_takes_what_a_killed_writer_left(store: ArtifactStore, tmp_path: Path) -> None:
    asyncio.run(store.put(KEY, b"x"))
    folder = tmp_path / "new" / "artifacts" / "jobs" / "video_1"
    (folder / "1.mp4#1").write_bytes(b"half a file")
    asyncio.run(store.delete_prefix("jobs/video_1"))
    assert not folder.exists()


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "..", "a/../b", "a/..", "./a", "a//b", "a/", "a b", "a#1", "a\\b", "ä", "a\n", "x" * 513]
)
def test_keys_that_lead_elsewhere_are_refused(store: ArtifactStore, key: str) -> None:
    async def main() -> None:
        calls = (store.get(key), store.put(key, b""), store.size(key), store.read_range(key, 0, 1), store.delete([key]))
        for call in (*calls, store.delete_prefix(key)):
            with pytest.raises(InvalidRequest, match="no artifact key"):
                await call

    asyncio.run(main())


@given(st.text(alphabet=st.sampled_from("aZ0._-/\\ #\n\x00é%~"), max_size=12) | st.text(max_size=12))
@example("a/...")
@example("." * 3)
def test_a_key_that_is_let_in_stays_inside(key: str) -> None:
    try:
        check_key(key)
    except InvalidRequest:
        return
    root = Path("/root/folder")
    inside = Path(os.path.normpath(root / key))
    assert inside != root
    assert inside.is_relative_to(root)
    assert str(inside.relative_to(root)) == key, "one file has one key"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tmp_path / "disk"
    folder.mkdir()
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=64k") != 0:
        pytest.skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    yield folder
    assert libc.umount2(str(folder).encode(), 2) == 0


def test_a_full_disk_is_said_and_leaves_nothing(tiny_disk: Path) -> None:
    store = ArtifactStore(str(tiny_disk))

    async def main() -> None:
        await store.put("small", b"x" * 1000)
        with pytest.raises(Unavailable, match="full") as error:
            await store.put("small", b"y" * 100_000)
        assert error.value.code == "storage_full"
        assert await store.get("small") == b"x" * 1000, "the earlier file is whole"

    asyncio.run(main())
    assert [p.name for p in tiny_disk.iterdir()] == ["small"]


def test_other_failures_do_not_tell_where_the_folder_is(store: ArtifactStore, tmp_path: Path) -> None:
    async def main() -> None:
        await store.put("a", b"")
        with pytest.raises(Unavailable) as error:
            await store.put("a/b", b"")
        assert error.value.code == "storage_failed"
        assert str(tmp_path) not in str(error.value)

    asyncio.run(main())


@pytest.mark.parametrize("url", ["", "gs://bucket/x", "http://host/x", "/proc/none/artifacts", "s3://"])
def test_what_cannot_be_a_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.artifacts"):
        ArtifactStore(url)


def test_a_folder_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        ArtifactStore(str(tmp_path), endpoint="http://x")
    with pytest.raises(ConfigError, match="nonsense"):
        ArtifactStore("s3://bucket/x", nonsense="1")
