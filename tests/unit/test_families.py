"""Every family: its prompts and sizes, what ``inspect`` says of it, and what is said of a checkpoint that is wrong."""

import shutil
from functools import cache

import pytest
import torch
from safetensors.torch import load_file

from adt_core import AdtError, Drafting, Lantern, load_drafter, load_target
from adt_core.app.inspect import inspect
from adt_core.models.families.emu3 import NEGATIVE
from tests.drafted import run
from tests.layouts import janus, llamagen
from tests.layouts.edits import edit_config, edit_tensors, write_one_file
from tests.layouts.families import WRITERS, load_small, write_network
from tests.layouts.tokens import spelled

LAYOUTS = WRITERS | {
    "janus, deepseek": lambda home: janus.write_janus(home / "Janus-Pro-7B", layout="deepseek", shards=2),
    "llamagen, authors'": llamagen.write_upstream,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """By layout: a checkpoint, in a folder with what belongs beside it."""
    return cache(lambda layout: LAYOUTS[layout](tmp_path_factory.mktemp(layout)))


@pytest.fixture
def copied(written, tmp_path):
    """The same in a folder of the test's own."""

    def copy(layout):
        path = written(layout)
        shutil.copytree(path.parent, tmp_path / "home")
        return tmp_path / "home" / path.name

    return copy


@pytest.fixture(scope="module")
def models(written, tmp_path_factory):
    """By family: the target in float64, and a folder with a drafter for it."""

    @cache
    def load(family):
        target = load_small(family, written(family), dtype=torch.float64)
        return target, write_network(family, tmp_path_factory.mktemp(f"{family}-network"), target)

    return load


# ---- prompts and sizes ---------------------------------------------------------------------------


def test_januss_prompt_is_the_published_conversation(models):
    """User, assistant, begin of image. The other row keeps the first and the last token, with padding between."""
    target, _ = models("janus")
    prompt, ids = target.encode_prompt("  a cat\n"), target.prompter.vocabulary
    said = f"{janus.BOS}<|User|>:acat\n\n<|Assistant|>:{janus.BEGIN_IMAGE}"
    assert spelled(target, prompt).replace(" ", "") == said
    assert target.prompter.tokenizer.token_to_id("<|User|>") in prompt
    padding = [ids[janus.PAD]] * (len(prompt) - 2)
    assert target.unconditional(prompt) == [ids[janus.BOS], *padding, ids[janus.BEGIN_IMAGE]]


def test_emu3s_prompt_names_the_grid(models):
    target, _ = models("emu3")
    prompt = target.encode_prompt(" a cat\n")
    assert spelled(target, prompt).replace(" ", "") == "<|extra_203|>acat<|imagestart|>5*6<|imagetoken|>"
    assert prompt[-1] == target.prompter.tokenizer.token_to_id("<|image token|>"), "one token"
    assert target.unconditional(prompt) == target.encode_prompt(NEGATIVE)


def test_luminas_prompt_names_the_size(models):
    """``<s>`` request ``<reserved08706> <racm3:break>`` height width, in steps of 32 pixels; the other row has the last
    three."""
    target, _ = models("lumina")
    prompt, ids = target.encode_prompt("a cat"), target.prompter.vocabulary
    header = [ids["<racm3:break>"], ids["<reserved08802>"], ids["<reserved08803>"]]
    assert prompt[0] == ids["<s>"] and prompt[-4:] == [ids["<reserved08706>"], *header]
    assert spelled(target, prompt[1:-4]) == "Generate an image of 96x64 according to the following prompt:\na cat"
    assert target.unconditional(prompt) == header


TOO_LONG = r"prompt is \d+ tokens long, and .* has room for \d+; shorten it"


@pytest.mark.parametrize(
    "family, text, reason",
    [
        *((family, " \n", "prompt is empty") for family in WRITERS),
        ("chameleon", "x" * 400, TOO_LONG),
        ("janus", "x" * 200, TOO_LONG),
        ("emu3", "x" * 9200, TOO_LONG),
        ("llamagen", "狐狸", "describe the picture in English"),
    ],
)
def test_prompts_that_it_cannot_read(models, family, text, reason):
    with pytest.raises(AdtError, match=reason):
        models(family)[0].encode_prompt(text)


@pytest.mark.parametrize(
    "family, size, reason",
    [
        ("janus", (128, 64), "grid of 6 x 6 tokens only"),
        ("emu3", (44, 40), "both sides must be multiples of 8"),
        ("emu3", (1024, 1024), "a grid of 90 x 90"),
        ("emu3", (0, 8), "one token at least"),
        ("lumina", (100, 64), "multiples of"),
        ("lumina", (48, 64), "multiples of 32"),
        ("lumina", (32, 160), "4 times"),
        ("lumina", (1024, 1024), "no more pixels"),
        ("lumina-mgpt-2", (48, 64), "multiples of 32"),
        ("lumina-mgpt-2", (800, 768), "no more pixels than 768x768"),
        ("liquid", (512, 256), "grid of 8 x 8 tokens only"),
        ("glm-image", (48, 64), "multiples of 32"),
        ("glm-image", (2080, 1024), "from 32 to 2048 pixels"),
    ],
)
def test_sizes_that_it_cannot_draw(models, family, size, reason):
    with pytest.raises(AdtError, match=rf"size is {size[0]}x{size[1]}.*{reason}"):
        models(family)[0].sized(*size)


def test_emu3_draws_a_wide_picture_of_as_many_pixels(models):
    """16:9, rounded as the published example does."""
    assert models("emu3")[0].sized(960, 544).grid == (68, 120)


# ---- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", [None, "network", "jacobi", "network+jacobi"])
@pytest.mark.parametrize("family", WRITERS)
def test_rows_end_where_they_must_also_under_relaxed_acceptance(models, family, drafter):
    target, network = models(family)
    how = {"lantern": Lantern(neighbours=39, delta=1.0), "drafting": Drafting("adt-tree")} if drafter else {}
    drawn = run(target, drafter and load_drafter(drafter.replace("network", str(network)), target), **how)
    (rows, columns), cells = target.grid, drawn.grid_codes()
    assert drawn.codes.shape == (2, target.length) and target.columns == columns + target.row_end
    assert target.row_end is (family in ("lumina", "lumina-mgpt-2", "emu3"))
    assert (0 <= cells).all() and (cells < 40).all()
    assert not target.row_end or (drawn.codes.view(2, rows, -1)[..., -1] == 40).all()
    side = target.downsample
    assert target.codec.decode(cells).shape == (2, 3, rows * side, columns * side)
    assert (drawn.trace.report()["substitution_rate"] > 0) is (drafter is not None)


def test_what_is_kept_is_counted_in_cells(models):
    """Lumina's 28 tokens are 24 cells; 26 cells are those of a larger image."""
    target, _ = models("lumina")
    assert run(target, prefix=torch.zeros(2, 24, dtype=torch.long)).grid_codes().eq(0).all()
    with pytest.raises(AdtError, match=r"prefix has the shape \[2, 26\]; it must be \[2 images, at most 24 codes\]"):
        run(target, prefix=torch.zeros(2, 26, dtype=torch.long))


def test_emu3s_codec_can_be_cancelled_and_forgets_it(models):
    codec, calls = models("emu3")[0].codec, []

    def check():
        calls.append(None)
        if len(calls) == 20:
            raise InterruptedError

    codes = torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(InterruptedError):
        codec.decode(codes, check)
    assert codec.decode(codes).shape == (1, 3, 16, 16) and len(calls) == 20


@pytest.mark.parametrize("family", WRITERS)
def test_loading_leaves_the_random_numbers_of_others_alone(written, family):
    state = torch.get_rng_state()
    load_target(written(family))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("family", ["chameleon", "janus", "emu3"])
def test_a_model_in_one_file(written, tmp_path, family):
    """With its configuration and its tokenizer in it."""
    folder = written(family)
    file = write_one_file(folder, folder / "tokenizer.json", tmp_path / "one.safetensors")
    one, whole = load_target(file), load_target(folder)
    assert one.family == family and one.encode_prompt("a cat") == whole.encode_prompt("a cat")
    for part in ("decoder", "codec"):
        pairs = zip(getattr(one, part).state_dict().values(), getattr(whole, part).state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert inspect(str(file))[0]["left_over"] == []


# ---- what inspect says, and what is refused ------------------------------------------------------


@pytest.mark.parametrize(
    "layout, grid, pixels, codebook",
    [
        ("chameleon", 6, 48, [40, 6]),
        ("lumina", 48, 768, [40, 6]),
        ("lumina-mgpt-2", 96, 768, [40, 4]),
        ("emu3", 90, 720, [40, 4]),
        ("glm-image", 32, 1024, [40, 24]),
        ("janus", 6, 96, [40, 8]),
        ("janus, deepseek", 4, 64, [40, 8]),
        ("liquid", 8, 512, [40, 6]),
        ("llamagen", 6, 96, [40, 8]),
        ("llamagen, authors'", 16, 256, [40, 8]),
    ],
)
def test_inspect_describes_a_whole_checkpoint(written, layout, grid, pixels, codebook):
    """From the headers; what only understanding needs is not called left over."""
    (found,) = inspect(str(written(layout)))
    assert found["family"].startswith(layout.split(",")[0]) and found["codebook"] == codebook
    assert (found["grid"], found["pixels"]) == ([grid, grid], [pixels, pixels])
    assert found["missing"] == found["wrong_shape"] == found["left_over"] == found["to_do"] == []
    assert found["memory"]["bfloat16"] > found["memory"]["int8"] > 0


def test_inspect_lists_what_is_missing_misshapen_and_left_over(copied):
    path, norms, misshapen = copied("chameleon"), "model.layers.0.self_attn.q_norm.bias", "model.layers.1.mlp.down_proj"

    def spoil(tensors):
        tensors["stranger"] = tensors.pop(norms)
        del tensors["model.norm.weight"]
        tensors[f"{misshapen}.weight"] = torch.zeros(64, 95)

    edit_tensors(path, spoil)
    (found,) = inspect(str(path))
    assert (found["missing"], found["left_over"]) == ([norms, "model.norm.weight"], ["stranger"])
    assert found["wrong_shape"] == [f"{misshapen}.weight (64, 95), expected (64, 96)"]


def lacks_beside(name):
    """Without a file or folder that lies beside the checkpoint."""

    def change(path):
        gone = path.parent / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    return change


@pytest.mark.parametrize(
    "layout, change, tensors, remedy",
    [
        ("lumina", lacks_beside("vqgan.ckpt"), "model.vqmodel.decoder.", "put vqgan.ckpt"),
        ("llamagen", lacks_beside("vq_ds16_t2i.pt"), "codec.", "download vq_ds16_t2i.pt"),
        ("llamagen, authors'", lacks_beside("t5-ckpt"), "t5.", "download google/flan-t5-xl"),
        ("lumina-mgpt-2", lacks_beside("movqgan_270M.ckpt"), "codec.", "download movqgan_270M.ckpt"),
        ("liquid", lacks_beside("vqgan.ckpt"), "model.vqmodel.", "put vqgan.ckpt"),
        ("janus", lambda path: (path / "tokenizer.json").unlink(), "", "has no tokenizer.json"),
        ("glm-image", lambda path: (path / "processor" / "tokenizer.json").unlink(), "", "has no tokenizer.json"),
    ],
)
def test_what_is_missing_beside_the_weights_is_named_with_its_remedy(copied, layout, change, tensors, remedy):
    path = copied(layout)
    change(path)
    with pytest.raises(AdtError, match=f"lacks the tensor '{tensors}.*{remedy}" if tensors else remedy):
        load_target(path)
    (found,) = inspect(str(path))
    assert len(found["to_do"]) == 1 and remedy in found["to_do"][0] and found["left_over"] == []
    assert all(name.startswith(tensors) for name in found["missing"]) and bool(found["missing"]) is bool(tensors)


def without(name):
    """Remove a file of the checkpoint's folder."""
    return lambda path: (path / name).unlink()


def config(change):
    return lambda path: edit_config(path, change)


def tensors(change):
    return lambda path: edit_tensors(path, change)


def swap_codes(config):
    """Code = id - 4 is what the tables and drafters of the family rely on."""
    names = config["vocabulary_map"]
    names["IMGIMGCZ"], names["IMGIMGDZ"] = names["IMGIMGDZ"], names["IMGIMGCZ"]


def lose_two(tensors):
    del tensors["model.layers.0.self_attn.q_norm.bias"], tensors["model.norm.weight"]


def rename(token, name):
    """In the tokenizer."""

    def change(path):
        file = path / "tokenizer.json"
        file.write_text(file.read_text(encoding="utf-8").replace(token, name), encoding="utf-8")

    return change


def lose_index_and_shard(path):
    for name in ("model.safetensors.index.json", "model-00002-of-00002.safetensors"):
        (path / name).unlink()


def keep_one_shard_alone(path):
    lose_index_and_shard(path)
    (path / "model-00001-of-00002.safetensors").rename(path / "model.safetensors")


def cut_an_attention(path):
    stored = llamagen.transformer()
    stored["layers.1.attention.wqkv.weight"] = stored["layers.1.attention.wqkv.weight"][:-1]
    torch.save({"model": stored}, path)


def empty_codec(path):
    file = path.parent / "movqgan_270M.ckpt"
    torch.save(torch.load(file) | {"encoder.conv_in.weight": torch.zeros(0, 3, 3, 3)}, file)


DOWN, EMBEDDINGS = "model.layers.1.mlp.down_proj.weight", "model.generation_embeddings.weight"
SECOND = "model-00002-of-00002.safetensors"
WRONG = {
    "chameleon": {
        "codes that do not follow each other": (config(swap_codes), r"gives code 2 the id \d+, but code 0 has \d+"),
        "no codec": (config(lambda c: c.pop("vq_config")), "no vq_config.*own config.json"),
        "no vocabulary": (config(lambda c: c.pop("vocabulary_map")), "vocabulary_map lacks <s>"),
        "no width": (config(lambda c: c.pop("hidden_size")), "hidden_size is None"),
        "a wrong shape": (
            tensors(lambda t: t.update({DOWN: torch.zeros(64, 95)})),
            rf"{DOWN} has shape \(64, 95\), but \(64, 96\) was expected",
        ),
        "two tensors lost": (tensors(lose_two), "lacks the tensor '.*' and 1 more"),
        "no tokenizer": (without("tokenizer.json"), "no tokenizer.json; download it"),
    },
    "lumina": {"no shard": (without(SECOND), SECOND)},
    "lumina-mgpt-2": {
        "no first token": (
            lambda path: (path / "tokenizer_config.json").write_text("{}"),
            "tokenizer_config.json names no bos_token or eos_token",
        ),
        "too small a vocabulary": (
            config(lambda c: c.update(vocab_size=155010)),
            "vocab_size 155010 has no room for the 40 tokens of its images",
        ),
        "a codec of no channels": (empty_codec, "the shapes of its codec make no sense; download its file again"),
    },
    "liquid": {
        "the tokenizer of Gemma": (
            rename("<boi>", "<unused0>"),
            "tokenizer.json lacks <boi>; use the checkpoint's own",
        ),
        "too small a vocabulary": (
            config(lambda c: c.update(vocab_size=256010)),
            "vocab_size 256010 has no room for the 40 tokens of its images",
        ),
    },
    "emu3": {
        "no shard": (without(SECOND), f"lacks {SECOND}"),
        "no index and no shard": (lose_index_and_shard, f"lacks {SECOND}; download"),
        "a shard alone": (keep_one_shard_alone, r"lacks the tensor '(text_model|vqmodel)\..* and \d+ more"),
        "no tokenizer": (without("tokenizer.json"), "has no tokenizer.json"),
        "another width": (
            config(lambda c: c["text_config"].update(intermediate_size=80)),
            r"mlp.gate_proj.weight has shape \(96, 64\), but \(80, 64\) was expected",
        ),
        "no end of row": (
            config(lambda c: c["vocabulary_map"].pop("<|extra_200|>")),
            r"vocabulary_map lacks <\|extra_200\|>",
        ),
        "a code lost": (
            config(lambda c: c["vocabulary_map"].pop("<|visual token 000007|>")),
            "does not name image tokens 0 to n - 1",
        ),
        "more codes": (
            config(lambda c: c["vq_config"].update(codebook_size=50)),
            "names 40 image tokens, but its vq_config 50 codes",
        ),
        "no decoder": (config(lambda c: c.pop("text_config")), "config.json has no text_config"),
        "no codec": (config(lambda c: c.pop("vq_config")), "config.json has no vq_config"),
    },
    "janus": {
        "a tensor lost": (
            tensors(lambda t: t.pop("model.generation_aligner.fc1.bias")),
            "lacks the tensor 'model.generation_aligner.fc1.bias'",
        ),
        "a wrong shape": (
            tensors(lambda t: t.update({EMBEDDINGS: torch.zeros(40, 7)})),
            rf"{EMBEDDINGS} has shape \(40, 7\), but \(40, 8\) was expected",
        ),
        "another tokenizer": (rename(janus.BEGIN_IMAGE, "<other>"), f"tokenizer.json lacks {janus.BEGIN_IMAGE}"),
        "no codec": (config(lambda c: c.pop("vq_config")), "config.json has no vq_config"),
    },
    "janus, deepseek": {"no shard": (without("pytorch_model-00002-of-00002.bin"), "lacks pytorch_model-00002-of")},
    "llamagen, authors'": {
        "a wrong shape": (
            cut_an_attention,
            r"layers.1.attention.wqkv.weight has shape \(383, 128\), but \(384, 128\) was expected",
        ),
    },
}
"""By layout and what is wrong: a change to the files, and what is said then."""


@pytest.mark.parametrize("layout, wrong", [(layout, wrong) for layout in WRONG for wrong in WRONG[layout]])
def test_what_is_wrong_with_a_checkpoint_is_named(copied, layout, wrong):
    path, (change, said) = copied(layout), WRONG[layout][wrong]
    change(path)
    with pytest.raises(AdtError, match=said):
        load_target(path)


def test_luminas_size_token_must_be_there(copied):
    """The name of its folder says that it draws 1024 pixels."""
    path = copied("lumina")
    with pytest.raises(AdtError, match="reserved08832"):
        load_target(path.rename(path.with_name("Lumina-mGPT-7B-1024")))


@pytest.mark.parametrize("place", ["", "Anole-7b-v0.1-hf", "beside"])
def test_chameleons_image_decoder_may_come_from_metas_file(copied, place):
    """Conversions of Chameleon have no decoder: Meta's file has it. It is found in the folder of the checkpoint or in
    the one above, and nowhere else."""
    path = copied("chameleon")
    whole, stored = load_target(path), load_file(path / "model.safetensors")
    codec = {name[len("model.vqmodel.") :]: value for name, value in stored.items() if ".vqmodel." in name}
    edit_tensors(path, lambda tensors: [tensors.pop(name) for name in stored if ".vqmodel.decoder." in name])
    file = path.parent / place / "vqgan.ckpt"
    file.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": {**codec, "loss.logvar": torch.zeros(())}}, file)
    if place == "beside":
        with pytest.raises(AdtError, match="put vqgan.ckpt of Chameleon"):
            load_target(path)
        return
    codes = torch.arange(36).view(1, 6, 6)
    assert torch.equal(load_target(path).codec.decode(codes), whole.codec.decode(codes))


def test_a_drafter_of_another_family_is_refused(models):
    with pytest.raises(AdtError, match="choose the drafter that was trained for this target"):
        load_drafter("bundled", models("janus")[0])
