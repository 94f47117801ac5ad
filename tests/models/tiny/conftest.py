"""The shipped checkpoint, loaded once."""

import pytest
from diffusers import WanPipeline

from raydiance.models.tiny import CHECKPOINT, export


@pytest.fixture(scope="session")
def pipe() -> WanPipeline:
    return export.load(CHECKPOINT)
