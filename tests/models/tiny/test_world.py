"""The world, its captions and the reader that judges clips of it."""

import numpy as np
import pytest

from raydiance.models.tiny import reader, world
from raydiance.models.tiny.tokenizer import EOS, MAX_SEQUENCE_LENGTH, UNK, build


@pytest.mark.parametrize("num_frames", [1, 9, 17])
def test_reader_judges_drawn_clips_right(num_frames: int) -> None:
    rng = np.random.default_rng(5)
    specs = world.sample_specs(rng, 150, world.all_specs())
    verdicts = [
        reader.judge(spec, reader.read(world.render(spec, rng, num_frames)), still_image=num_frames == 1)["all"]
        for spec in specs
    ]
    assert np.mean(verdicts) >= 0.98


@pytest.mark.parametrize("field", reader.FIELDS)
def test_reader_notices_one_wrong_field(field: str) -> None:
    rng = np.random.default_rng(6)
    words = {
        "colour": list(world.COLOURS),
        "shape": list(world.SHAPES),
        "size": list(world.SIZES),
        "motion": list(world.MOTIONS),
        "background": list(world.BACKGROUNDS),
    }[field]
    for spec in world.sample_specs(rng, 20, world.all_specs()):
        asked = spec._replace(**{field: words[(words.index(getattr(spec, field)) + 1) % len(words)]})
        verdict = reader.judge(asked, reader.read(world.render(spec, rng)))
        assert [name for name, right in verdict.items() if not right] == [field, "all"]


def test_reader_finds_nothing_in_an_empty_clip() -> None:
    empty = np.full((9, world.SIZE_PX, world.SIZE_PX, 3), world.BACKGROUNDS["gray"][0], np.uint8)
    assert reader.read(empty)[:5] == (reader.OTHER,) * 4 + ("gray",)


def test_reader_asks_for_the_object_in_every_frame() -> None:
    rng = np.random.default_rng(7)
    spec = world.Spec("red", "circle", "large", "still", "black")
    clip = world.render(spec, rng)
    clip[4] = world.BACKGROUNDS["black"]
    assert reader.read(clip).colour == reader.OTHER


def test_held_out_combinations_are_apart_and_cover_every_pair_once() -> None:
    training, held_out = set(world.training_specs()), set(world.held_out_specs())
    assert not training & held_out
    assert training | held_out == set(world.all_specs())
    triples = {(spec.colour, spec.shape, spec.motion) for spec in held_out}
    assert not triples & {(spec.colour, spec.shape, spec.motion) for spec in training}
    assert len(triples) == len(world.COLOURS) * len(world.SHAPES) == len({triple[:2] for triple in triples})


def test_held_out_phrasings_never_appear_among_training_captions() -> None:
    rng = np.random.default_rng(8)
    assert not set(world.HELD_OUT_TEMPLATES) & set(world.TRAINING_TEMPLATES + world.IMAGE_TEMPLATES)
    specs = world.sample_specs(rng, 2000, world.all_specs())
    trained = {world.caption(s, rng, t) for s in specs for t in (world.TRAINING_TEMPLATES, world.IMAGE_TEMPLATES)}
    assert not trained & {world.caption(spec, rng, world.HELD_OUT_TEMPLATES) for spec in specs}


def test_held_out_phrasings_use_only_trained_words() -> None:
    trained = " ".join(world.TRAINING_TEMPLATES + world.IMAGE_TEMPLATES).replace(",", " , ").replace(":", " : ").split()
    asked = " ".join(world.HELD_OUT_TEMPLATES).replace(",", " , ").replace(":", " : ").split()
    assert set(asked) <= set(trained)


def test_objects_stay_inside_the_picture() -> None:
    rng = np.random.default_rng(9)
    for spec in world.sample_specs(rng, 100, world.all_specs()):
        x, y, radius = world.track(spec, rng)
        assert min((x - radius).min(), (y - radius).min()) > 0
        assert max((x + radius).max(), (y + radius).max()) < world.SIZE_PX


def test_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="hexagon"):
        world.coverage("hexagon", *np.ones((3, 1), np.float32))


def test_tokenizer_round_trip() -> None:
    tokenizer = build()
    rng = np.random.default_rng(10)
    templates = world.TRAINING_TEMPLATES + world.HELD_OUT_TEMPLATES + world.IMAGE_TEMPLATES
    for spec in world.sample_specs(rng, 200, world.all_specs()):
        text = world.caption(spec, rng, templates)
        ids = tokenizer(text)["input_ids"]
        assert len(ids) <= MAX_SEQUENCE_LENGTH
        assert tokenizer.unk_token_id not in ids
        words = tokenizer.convert_ids_to_tokens(ids)
        assert words == [*text.replace(",", " ,").replace(":", " :").split(), EOS]


def test_tokenizer_marks_what_it_does_not_know() -> None:
    tokenizer = build()
    assert tokenizer.convert_ids_to_tokens(tokenizer("A RED hexagon")["input_ids"]) == ["a", "red", UNK, EOS]
    assert tokenizer("")["input_ids"] == [1]
