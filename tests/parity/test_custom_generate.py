"""Tests of `generate(..., custom_generate=...)`, with which a model of transformers uses this engine."""

import copy

import pytest
import torch
from transformers import ChameleonForConditionalGeneration, Emu3ForConditionalGeneration, JanusForConditionalGeneration

from adt_core import Pipeline, custom_generate
from tests.layouts.emu3 import write_emu3
from tests.layouts.janus import write_janus
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint

TEXTS = ("a cat", "three small dogs")
KINDS = {
    "chameleon": (ChameleonForConditionalGeneration, write_tiny_checkpoint),
    "janus": (JanusForConditionalGeneration, write_janus),
    "emu3": (Emu3ForConditionalGeneration, write_emu3),
}
SIZE = {"emu3": (32, 24)}  # sizes of images, for models whose usual images are large


def load(kind, folder):
    model, write = KINDS[kind]
    write(folder)
    return model.from_pretrained(folder).double().eval()


@pytest.fixture(scope="module", params=KINDS)
def loaded(request, tmp_path_factory):
    """Return a model, its function for `custom_generate`, and a pipeline of the same files."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    model = load(request.param, folder)
    size = SIZE.get(request.param)
    pipe = Pipeline.load(folder, device="cpu", dtype="float64", drafter="jacobi", **({"size": size} if size else {}))
    return model, custom_generate(model, drafter="jacobi", size=size, guidance_scale=3.0), pipe


def padded(pipe):
    """Return the prompts' token ids, padded on the left, and their attention mask."""
    rows = [pipe.target.encode_prompt(text) for text in TEXTS]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def test_the_tokens_are_those_of_the_pipeline(loaded):
    model, generate, pipe = loaded
    sampling = {"temperature": 0.9, "top_k": 20}
    length = pipe.target.length
    options = {"do_sample": True, "max_new_tokens": length, **sampling}
    found = model.generate(**padded(pipe), custom_generate=generate, seed=5, **options)[:, -length:]
    expected = pipe.generate(TEXTS, seed=5, guidance_scale=3.0, top_p=1.0, suffix="", **sampling)
    ids = pipe.target.decoder.image_ids
    codes = found if found.max() < pipe.target.num_tokens else (found[..., None] == ids).long().argmax(-1)
    for image, result in zip(pipe.target.cells(codes), expected, strict=True):
        assert image.equal(result.tokens)


def test_the_weights_are_shared(loaded):
    """A change of one model changes the other, and transformers' forward gives the logits that it gave before."""
    model, generate, pipe = loaded
    layer = generate.pipeline.target.decoder.layers[0]
    shared = {id(part): part.untyped_storage().data_ptr() for part in (layer.qkv, layer.out, layer.gate_up, layer.down)}
    pointers = {part.untyped_storage().data_ptr() for part in model.parameters()}
    assert pointers >= set(shared.values())
    with torch.no_grad():
        layer.down.mul_(2)
    weights = [part for name, part in model.named_parameters() if name.endswith("layers.0.mlp.down_proj.weight")]
    assert any(weight.equal(layer.down.T) for weight in weights)
    with torch.no_grad():
        layer.down.div_(2)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_computes_the_same_with_shared_weights(kind, tmp_path):
    model = load(kind, tmp_path / "model")
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        custom_generate(model, drafter="jacobi", size=SIZE.get(kind))
        assert (model(input_ids=ids).logits - before).abs().max() < 1e-10


def test_half_precision(tmp_path):
    """The last norm and the head are stored in float32, so they are copies."""
    model = load("chameleon", tmp_path / "model").to(torch.bfloat16)
    pipe = Pipeline.load(tmp_path / "model", device="cpu", dtype="bfloat16", drafter="jacobi")
    generate = custom_generate(model, drafter="jacobi")
    assert generate.pipeline.target.decoder.exact and generate.pipeline.target.decoder.dtype == torch.bfloat16
    ids = torch.tensor([pipe.target.encode_prompt("a cat")])
    found = model.generate(ids, custom_generate=generate, do_sample=True, top_k=0, guidance_scale=2.0, seed=3)
    result = pipe.generate("a cat", seed=3, temperature=1.0, top_p=1.0, guidance_scale=2.0)
    assert found[0, ids.shape[1] :].equal(pipe.target.decoder.image_ids[result.tokens.flatten()])


def test_several_images_of_a_prompt_differ(loaded):
    model, generate, pipe = loaded
    ids = torch.tensor([pipe.target.encode_prompt("a cat")])
    options = {"do_sample": True, "top_k": 0, "seed": 1, "max_new_tokens": pipe.target.length}
    one, other = model.generate(ids, custom_generate=generate, num_return_sequences=2, **options)
    assert not one.equal(other) and one.equal(model.generate(ids, custom_generate=generate, **options)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_weights_of_its_own_again_can_be_saved(kind, tmp_path):
    model = load(kind, tmp_path / "model")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    custom_generate(model, drafter="jacobi", size=SIZE.get(kind))
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    model.save_pretrained(tmp_path / "saved")
    saved = KINDS[kind][0].from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in before.items())


def test_another_or_a_moved_model_is_refused(loaded):
    model, generate, pipe = loaded
    ids = torch.tensor([pipe.target.encode_prompt("a cat")])
    other = copy.deepcopy(model)
    with raises_key("custom_generate.other_model"):
        other.generate(ids, custom_generate=generate, max_new_tokens=pipe.target.length)


def test_a_model_in_memory_counts_and_not_its_files(tmp_path):
    """A fine-tuned model has other weights than the files from which it was loaded."""
    model = load("emu3", tmp_path / "model")
    pipe = Pipeline.load(tmp_path / "model", device="cpu", dtype="float64", drafter="jacobi", size=SIZE["emu3"])
    with torch.no_grad():
        model.lm_head.weight.neg_()
    generate = custom_generate(model, drafter="jacobi", size=SIZE["emu3"])
    assert generate.pipeline.target.decoder.head.equal(-pipe.target.decoder.head)


def test_greedy_decoding_and_torchs_seed(loaded):
    model, generate, pipe = loaded
    inputs = padded(pipe) | {"custom_generate": generate, "max_new_tokens": pipe.target.length}
    greedy = [model.generate(**inputs, do_sample=False, seed=seed) for seed in (1, 2)]
    assert greedy[0].equal(greedy[1])
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.generate(**inputs, do_sample=True))
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(drawn[2])


def test_a_prompt_that_begins_no_image_is_refused(loaded):
    model, generate, pipe = loaded
    ids = padded(pipe)["input_ids"][:1, :-1]
    with raises_key("custom_generate.wrong_end"):
        model.generate(ids, custom_generate=generate, max_new_tokens=pipe.target.length)
