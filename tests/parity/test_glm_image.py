"""Tests that GLM-Image's first stage equals ``GlmImageForConditionalGeneration`` and ``GlmImageProcessor``.

Both classes are from transformers. The tests compare prompts, logits, complete images and the codes of source images.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

transformers = pytest.importorskip("transformers", "5.0")  # older versions lack the model

from adt_core import Drafting, Sampling, cli, load_drafter, load_target  # noqa: E402
from adt_core.app.continuation import to_pixels  # noqa: E402
from adt_core.app.inspect import inspect  # noqa: E402
from adt_core.models.families.glm_image import BEGIN_GRID, END_GRID  # noqa: E402
from adt_core.run.model_files import is_target_file  # noqa: E402
from tests.command import read_grids  # noqa: E402
from tests.drafted import METHODS, run, write_drafter  # noqa: E402
from tests.layouts.edits import write_one_file  # noqa: E402
from tests.layouts.glm_image import CODES, IMAGE, their_logits, write_glm_image  # noqa: E402
from tests.raising import raises_key  # noqa: E402
from tests.reading import logits_after  # noqa: E402
from tests.tiny import write_tiny_checkpoint  # noqa: E402

TOLERANCE = 1e-4
TEXTS = ("a cat", "three small dogs")
WIDTH = 96
HEIGHT = 64
SOURCES = ((544, 512), (512, 640))  # width and height in pixels; the processor would enlarge smaller images


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_glm_image(tmp_path_factory.mktemp("glm") / "GLM-Image", scale=3.0)


@pytest.fixture(scope="module")
def target(folder):
    return load_target(folder, dtype=torch.float64).sized(WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def theirs(folder):
    path = folder / "vision_language_encoder"
    model = transformers.GlmImageForConditionalGeneration.from_pretrained(path, attn_implementation="eager")
    return model.eval().double()


@pytest.fixture(scope="module")
def processor(folder):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "processor" / "tokenizer.json"),
        bos_token="<|dit_token_16384|>",
        extra_special_tokens={"image_token": IMAGE, "grid_bos_token": BEGIN_GRID, "grid_eos_token": END_GRID},
    )
    module = transformers.models.glm_image.image_processing_pil_glm_image
    size = {"shortest_edge": 512 * 512, "longest_edge": 2048 * 2048}
    images = module.GlmImageImageProcessorPil(patch_size=16, merge_size=1, temporal_patch_size=1, size=size)
    return transformers.GlmImageProcessor(images, tokenizer)


def source_images():
    generator = torch.Generator().manual_seed(5)
    colours = [torch.randint(256, (h // 32, w // 32, 3), generator=generator, dtype=torch.uint8) for w, h in SOURCES]
    return [Image.fromarray(pixels.numpy()).resize(size) for pixels, size in zip(colours, SOURCES)]


def process(processor, text, images=None):
    """Return the processor's inputs for source images followed by a text."""
    marks = "".join(f"<|dit_token_16384|>{IMAGE}<|dit_token_16385|>" for _ in images or ())
    return processor(images=images, text=[marks + text], target_h=HEIGHT, target_w=WIDTH, return_tensors="pt")


def codes_of(target, images):
    return [target.codec.encode(to_pixels(image, image.height, image.width))[0] for image in images]


@pytest.mark.parametrize("width, height", [(1024, 1024), (1152, 768), (768, 1344)])
def test_prompt_and_grids_equal_the_processors(target, processor, width, height):
    ours = target.sized(width, height)
    inputs = processor(text=["a cat"], target_h=height, target_w=width)
    assert ours.encode_prompt(" a cat\n") == inputs["input_ids"][0]
    assert inputs["image_grid_thw"].tolist() == [[1, *ours.grid], [1, *ours.lead]]


@torch.no_grad()
def test_logits_of_prompt_and_both_grids(target, theirs, processor):
    """Compare a forward pass over two prompts, and one over the tokens of the small image and of the image."""
    codes = torch.randint(CODES, (target.length - 1,), generator=torch.Generator().manual_seed(1))
    for found, text in zip(logits_after(target, TEXTS, codes), TEXTS):
        expected = their_logits(theirs, process(processor, text), codes.tolist())
        assert (found - expected[:, :CODES]).abs().max() < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("images", [0, 1, 2])
def test_image_equals_the_references(target, theirs, processor, images):
    """Compare with a greedy ``generate`` that permits only image tokens, with 0, 1 and 2 source images."""
    sources = source_images()[:images]
    inputs = process(processor, "a cat", sources or None)
    sourced = target.with_sources(codes_of(target, sources)) if images else target
    ours = run(sourced, prompts=("a cat",), sampling=Sampling(temperature=0, guidance_scale=1.0))
    expected = theirs.generate(
        **inputs, max_new_tokens=sourced.length, do_sample=False, prefix_allowed_tokens_fn=lambda *_: list(range(CODES))
    )
    assert ours.codes[0].tolist() == expected[0, inputs["input_ids"].shape[1] :].tolist()
    assert len(set(ours.codes[0].tolist())) > 3


@torch.no_grad()
def test_codes_of_source_images(target, theirs, processor):
    """The codebook consists of vectors of the source images, so the images contain many different codes."""
    images = source_images()
    inputs = process(processor, "a cat", images)
    grids = inputs["image_grid_thw"][:-1]
    features = theirs.float().get_image_features(inputs["pixel_values"], grids).pooler_output
    vectors = torch.cat([theirs.model.vqmodel.quant_conv(part[None])[0].flatten(1).T for part in features])
    chosen = vectors[:: len(vectors) // CODES][:CODES]
    before = target.codec.quantize.embedding.weight.clone()
    for weight in (target.codec.quantize.embedding.weight, theirs.model.vqmodel.quantize.embedding.weight):
        weight.copy_(chosen)
    expected = theirs.get_image_tokens(features).split(grids.prod(1).tolist())
    found = codes_of(target, images)
    target.codec.quantize.embedding.weight.copy_(before)
    theirs.double()
    theirs.model.vqmodel.quantize.embedding.weight.copy_(before)
    assert [codes.shape for codes in found] == [(16, 17), (20, 16)]
    assert [codes.flatten().tolist() for codes in found] == [codes.tolist() for codes in expected]
    assert len(set(torch.cat(expected).tolist())) > CODES // 2


@pytest.mark.parametrize("method", ["adt-tree", pytest.param("merged", marks=pytest.mark.long)])
def test_drafting_changes_no_image_with_a_source_image(target, tmp_path, method):
    """tests/unit/engine/test_lossless.py covers images without source images."""
    source, drafting = METHODS[method]
    write_drafter(tmp_path / "network", target)
    drafter = load_drafter(source.replace("network", str(tmp_path / "network")), target)
    codes = [torch.randint(CODES, (3, 5), generator=torch.Generator().manual_seed(2))]
    sourced = target.with_sources(codes)
    sampling = Sampling(3, 0.9, top_p=0.75, guidance_scale=1.0)
    plain = run(sourced, sampling=sampling)
    assert run(sourced, drafter, sampling=sampling, drafting=Drafting(**drafting)).codes.equal(plain.codes)


@pytest.mark.parametrize("without", [(), ("config_json",), ("tokenizer_json",)])
def test_single_file_loads_the_same_model(folder, target, tmp_path, monkeypatch, without):
    """The loader then uses the published configuration, or the tokenizer in the folder ``processor``."""
    stage = folder / "vision_language_encoder"
    tokenizer = folder / "processor" / "tokenizer.json"
    file = write_one_file(stage, tokenizer, tmp_path / "glm_image_ar.safetensors", *without)
    if "config_json" in without:
        published = json.loads((stage / "config.json").read_text(encoding="utf-8"))
        monkeypatch.setattr("adt_core.models.families.glm_image._PUBLISHED", published)
    if "tokenizer_json" in without:
        shutil.copytree(folder / "processor", tmp_path / "processor")
    found = load_target(file, dtype=torch.float64).sized(WIDTH, HEIGHT)
    assert found.encode_prompt("a cat") == target.encode_prompt("a cat")
    pairs = zip(found.decoder.state_dict().values(), target.decoder.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs) and is_target_file(file.name)
    assert inspect(str(file))[0]["left_over"] == []


@pytest.mark.parametrize("text, key", [(b"{", "json.unreadable"), (b"[]", "json.no_object")])
def test_single_file_with_an_invalid_configuration(tmp_path, text, key):
    file = tmp_path / "glm_image_ar.safetensors"
    save_file({"config_json": torch.tensor(list(text), dtype=torch.uint8)}, file)
    with raises_key(key, path="glm_image_ar.safetensors: config_json"):
        load_target(file)


@torch.no_grad()
def test_unconditional_prompt_keeps_the_sources(target):
    """Rotary positions are counted backwards from the start of the image, so they don't depend on the length."""
    sourced = target.with_sources([torch.zeros(3, 5, dtype=torch.long), torch.ones(2, 2, dtype=torch.long)])
    (prompt, short) = map(sourced.encode_prompt, ("a cat", "a"))
    unconditional = sourced.unconditional(prompt)
    assert unconditional == sourced.unconditional(short) and len(unconditional) == len(short) - 1
    assert unconditional.mrope_positions.equal(short.mrope_positions + 1)
    assert unconditional.mrope_positions.equal(prompt.mrope_positions + 5)


def test_other_families_reject_source_images(tmp_path):
    with raises_key("model.no_source"):
        load_target(write_tiny_checkpoint(tmp_path / "target")).with_sources([torch.zeros(2, 2, dtype=torch.long)])


@pytest.mark.parametrize("how", ["text", "source", "sources", "continue_from"])
def test_command_line_generates_a_preview_and_repeats_it(folder, tmp_path, capsys, how):
    options = []
    for number, image in enumerate(source_images()[: {"text": 0, "sources": 2}.get(how, 1)]):
        image.save(tmp_path / f"{number}.png")
        options += [f"--{how.removesuffix('s').replace('_', '-')}", str(tmp_path / f"{number}.png")]
    first, again = ([tmp_path / f"{name}.{end}" for end in ("png", "json")] for name in ("first", "again"))
    common = ["generate", "--model", str(folder)]
    options += ["--size", f"{WIDTH}x{HEIGHT}", "--prompt", "a cat", "--method", "no-drafting"]
    assert cli.main([*common, *options, "--output", str(first[0]), "--tokens", str(first[1])]) == 0
    out = capsys.readouterr().out
    assert "a preview of the tokens" in out and out.count("was trained for images of about as many pixels as") == 1
    assert cli.main([*common, "--from-png", str(first[0]), "--output", str(again[0]), "--tokens", str(again[1])]) == 0
    one, other = (read_grids(tokens) for _, tokens in (first, again))
    assert one == other and np.shape(one) == (1, HEIGHT // 32, WIDTH // 32)
    assert Image.open(first[0]).size == (WIDTH, HEIGHT)
