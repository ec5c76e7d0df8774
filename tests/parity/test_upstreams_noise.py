"""With upstream's noise, a seed gives the picture that the script of the model's authors draws, drafted or not.

The scripts: transformers' ``generate`` for Chameleon, Janus-Pro and Emu3; for the others, whose authors have loops of
their own, a plain loop in the published order. All draw with ``torch.multinomial`` and a seeded generator.
"""

from functools import cache, partial

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    ChameleonForConditionalGeneration,
    Emu3ForConditionalGeneration,
    GemmaForCausalLM,
    JanusForConditionalGeneration,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from adt_core import Drafting, Sampling, load_drafter
from adt_core.lab.benchmark import drafters_by_name
from tests.drafted import run
from tests.layouts import llamagen as llamagen_layout
from tests.layouts.families import WRITERS, load_small, write_both
from tests.layouts.glm_image import their_logits
from tests.layouts.janus import BEGIN_IMAGE, BOS, PAD
from tests.layouts.reference import reference
from tests.pairwise import each_once, pairwise
from tests.parity import test_janus, test_llamagen

PROMPT = "a cat"
BROKEN = Version("5") <= Version(transformers.__version__) < Version("5.5")  # Janus: it wants defaults that are gone
METHODS = {
    "plain": ("network", dict(method="autoregressive")),
    "adt-tree": ("network", dict(method="adt-tree")),
    "window": ("jacobi", dict(method="eagle2", depth=12, width=1, nodes=12)),
    "network and window": ("network+jacobi", dict(method="eagle2", depth=12, width=3, nodes=16)),
    "auto": ("network", dict(method="auto")),
}
DRAWN = {
    "from all": dict(temperature=1.0),
    "cooler": dict(temperature=0.7),
    "top-k": dict(temperature=1.0, top_k=12),
    "top-p, cooler": dict(temperature=0.7, top_p=0.9),
}
"""Temperature, top-k and top-p: as published, but for k, of which there are fewer codes here."""
GUIDANCE = {"guided": 5.0, "unguided": 1.0}
IMAGES = {"one": 1, "four": 4}
KEPT = {"whole": 0, "continued": 11}
"""Cells of each picture that are kept."""
SEEDS = {str(seed): seed for seed in (0, 11, 2**32 + 1, 2**63, 2**64 - 1)}
MORE_SEEDS = 1, 12, 13
"""Of the long test."""


# ---- transformers' scripts -----------------------------------------------------------------------
#
# A script takes a prefix [B, P], how tokens are drawn, and S seeds. It gives the tokens [S * B, T].


def seeded(draw, seeds):
    """What is drawn with the global generator, for each seed."""
    with torch.random.fork_rng():
        return torch.cat([torch.manual_seed(seed) and draw() for seed in seeds])


def generate(model, target, prefix, sampling, seeds):
    """``generate`` from the prompt and a prefix on, with its own guidance, and the image's tokens alone allowed."""
    prompt, ids = target.encode_prompt(PROMPT), target.decoder.image_ids
    own, other = (
        torch.cat([torch.tensor([row] * len(prefix)), ids[prefix]], 1) for row in (prompt, target.unconditional(prompt))
    )

    def draw():
        guide = UnbatchedClassifierFreeGuidanceLogitsProcessor(sampling.guidance, model, unconditional_ids=other)
        return model.generate(
            own,
            attention_mask=torch.ones_like(own),
            logits_processor=[guide] if sampling.guidance != 1 else [],
            prefix_allowed_tokens_fn=lambda _, tokens: ids[legal(target, len(tokens) - len(prompt))].tolist(),
            max_new_tokens=target.length - prefix.shape[1],
            **warped(sampling),
        )

    places = torch.full((target.decoder.config.vocab_size,), -1).index_copy(0, ids, torch.arange(len(ids)))
    return places[seeded(draw, seeds)[:, len(prompt) :]]


def legal(target, position):
    """The tokens that may stand at a position: the codes, or where a row ends, what ends it."""
    codes, at_end = target.num_codes, target.row_end and (position + 1) % target.columns == 0
    return torch.tensor([codes]) if at_end else torch.arange(codes)


def warped(sampling):
    """How tokens are drawn, as ``generate`` takes it."""
    return {"do_sample": True, **{name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}}


def chameleon(path, target):
    """Its own forward would forbid the tokens of images."""
    model = ChameleonForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []
    return partial(generate, model, target)


def emu3(path, target):
    model = Emu3ForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    return partial(generate, model, target)


def glm_image(path, target):
    """Its authors' script has no guidance and continues no picture: there the loop below stands in for it."""
    stage = path / "vision_language_encoder"
    model = transformers.GlmImageForConditionalGeneration.from_pretrained(stage, attn_implementation="eager").eval()

    def inputs(rows):
        grids = torch.tensor([[1, *target.grid], [1, *target.lead]]).repeat(len(rows), 1)
        each = torch.full((len(rows),), 2)
        mask = torch.ones_like(rows)
        return {"input_ids": rows, "attention_mask": mask, "image_grid_thw": grids, "images_per_sample": each}

    def logits(_, row, images):
        return torch.stack([their_logits(model, inputs(torch.tensor([row])), codes)[-1] for codes in images.tolist()])

    def script(prefix, sampling, seeds):
        if prefix.shape[1] or sampling.guidance != 1:
            return loop(logits, target, torch.arange(target.num_codes), 0, prefix, sampling, seeds)
        rows = torch.tensor([target.encode_prompt(PROMPT)] * len(prefix))
        allowed = lambda *_: list(range(target.num_codes))  # noqa: E731
        options = {"max_new_tokens": target.length, "prefix_allowed_tokens_fn": allowed, **warped(sampling)}
        return seeded(lambda: model.generate(**inputs(rows), **options)[:, rows.shape[1] :], seeds)

    return script


def janus(path, target):
    """Its ``generate`` knows no picture to continue and none without guidance: those are drawn as the authors do."""
    model = JanusForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    vocabulary = target.prompter.vocabulary
    model.generation_config.generation_kwargs = {"boi_token_id": vocabulary[BEGIN_IMAGE]}
    model.generation_config.bos_token_id, model.generation_config.pad_token_id = vocabulary[BOS], vocabulary[PAD]

    def logits(_, row, images):
        return torch.stack([test_janus.reference_logits(model, row, codes)[-1] for codes in images.tolist()])

    def script(prefix, sampling, seeds):
        if prefix.shape[1] or sampling.guidance == 1 or BROKEN:
            return loop(logits, target, torch.arange(target.num_codes), 0, prefix, sampling, seeds)
        rows = torch.tensor([target.encode_prompt(PROMPT)] * len(prefix))
        options = {"attention_mask": torch.ones_like(rows), "generation_mode": "image", **warped(sampling)}
        return seeded(lambda: model.generate(rows, guidance_scale=sampling.guidance, **options), seeds)

    return script


# ---- the authors' scripts -----------------------------------------------------------------------


def among_all(model_of, header, path, target):
    """The loop of a script that samples from the whole vocabulary. header: as in :func:`loop`."""
    model, ids = model_of(path), target.decoder.image_ids

    def logits(_, row, images):
        rows = torch.cat([torch.tensor([row] * len(images)), ids[images]], 1)
        return model.lm_head(model.model(input_ids=rows).last_hidden_state[:, -1])

    return partial(loop, logits, target, ids, header)


def lumina2(path):
    return reference(path, ".vqmodel.", vocabulary_map={"<image>": 0}, bos_token_id=0)


def gemma(path):
    return GemmaForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def llamagen(path, target):
    tensors, side = llamagen_layout.transformer(), target.grid[0]
    features, hidden = test_llamagen.t5_features(path, PROMPT)
    captions = features, tensors["cls_embedding.uncond_embedding"]

    def logits(number, _, images):
        read = lambda codes: test_llamagen.reference(tensors, captions[number], hidden, codes, side)[1][-1]  # noqa: E731
        return torch.vmap(read)(images)

    return partial(loop, logits, target, torch.arange(target.num_codes), 0)


def loop(logits, target, columns, header, prefix, sampling, seeds):
    """Guidance, temperature, top-k, top-p, and one draw for the whole batch, which is that of a seed.

    logits: of a row's number (0 is the prompt's), its ids, and the tokens [N, n] behind them: the vectors [N, V] that
    are sampled from. columns: the place in them of every token. header: tokens that end the prompt and are drawn, too,
    where no picture is continued; each is the only one that is likely.
    """
    prompt, tokens = target.encode_prompt(PROMPT), prefix.repeat(len(seeds), 1)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    scale = target.guidance(sampling.guidance, torch.empty(0))
    for position in range(prefix.shape[1] or -header, target.length):
        z, other = (logits(i, row, tokens) for i, row in enumerate([prompt, target.unconditional(prompt)]))
        p = torch.zeros_like(z)
        if position < 0:
            p[:, prompt[position]] = 1
        else:
            at = scale if isinstance(scale, float) else scale[position]
            z = other + at * (z - other) if sampling.guidance != 1 else z
            allowed = columns[legal(target, position)]
            p[:, allowed] = filtered(z[:, allowed] / sampling.temperature, sampling).softmax(-1)
        batches = zip(p.chunk(len(seeds)), generators)
        drawn = torch.cat([torch.multinomial(batch, 1, generator=generator) for batch, generator in batches])
        if position >= 0:
            tokens = torch.cat([tokens, (drawn == columns).int().argmax(-1, keepdim=True)], 1)
    return tokens


def filtered(z, sampling):
    """Logits [N, V] with those that top-k and top-p exclude at minus infinity."""
    if 0 < sampling.top_k < z.shape[1]:
        z = z.masked_fill(z < z.topk(sampling.top_k).values[:, -1:], -torch.inf)
    ordered, order = z.sort(descending=True)
    p = ordered.softmax(-1)
    beyond = p.cumsum(-1) - p > sampling.top_p
    return z.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), -torch.inf)


SCRIPTS = {
    "chameleon": chameleon,
    "lumina": partial(among_all, reference, 3),
    "lumina-mgpt-2": partial(among_all, lumina2, 3),
    "emu3": emu3,
    "janus": janus,
    "liquid": partial(among_all, gemma, 0),
    "llamagen": llamagen,
}
if "glm-image" in WRITERS:
    SCRIPTS["glm-image"] = glm_image


# ---- against the engine --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Of a family: the target, its drafters by source, and its script."""

    @cache
    def load(family):
        path, network = write_both(family, tmp_path_factory.mktemp(family))
        target = load_small(family, path)
        return target, drafters_by_name(load_drafter(network, target)), SCRIPTS[family](path, target)

    return load


@torch.no_grad()
def compare(models, case, seeds, methods):
    """The pictures of these seeds by the script, and by these methods, in which all are drawn at once.

    case: values of all axes but those two.
    """
    target, drafters, script = models
    images, kept = IMAGES[case["images"]], KEPT[case["kept"]]
    sampling = Sampling(guidance=GUIDANCE[case["guidance"]], noise="upstream", **DRAWN[case["drawn"]])
    cells = torch.randint(target.num_codes, (images, kept), generator=torch.Generator().manual_seed(images))
    expected = script(target.tokens(cells), sampling, seeds)
    assert expected.shape == (images * len(seeds), target.length)
    how = {
        "sampling": sampling,
        "seeds": [seed for seed in seeds for _ in range(images)],
        "image_indices": [*range(images)] * len(seeds),
        "prefix": cells.repeat(len(seeds), 1),
    }
    for method in methods:
        source, options = METHODS[method]
        pictures = run(target, drafters[source], (PROMPT,) * len(expected), drafting=Drafting(**options), **how)
        assert pictures.codes.tolist() == expected.tolist(), method
    assert len(set(expected.flatten().tolist())) > 4


AXES = {"family": SCRIPTS, "drawn": DRAWN, "guidance": GUIDANCE, "images": IMAGES, "kept": KEPT}
CASES = pairwise({axis: list(values) for axis, values in AXES.items()})
"""Of the long test, which draws each with every seed and every method."""
QUICK = [
    row
    for row in pairwise({**AXES, "method": list(METHODS), "seed": list(SEEDS)})
    if row["family"] != "liquid" or row["images"] == "one"
]
"""Liquid's large vocabulary is slow: it draws one image."""


@pytest.mark.parametrize("row", each_once(QUICK), ids=lambda row: ", ".join(row.values()))
def test_a_seeds_picture_is_the_scripts(row, loaded):
    compare(loaded(row["family"]), row, [SEEDS[row["seed"]]], [row["method"]])


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(case.values()))
def test_every_seeds_picture_is_the_scripts_by_every_method(case, loaded):
    compare(loaded(case["family"]), case, [*SEEDS.values(), *MORE_SEEDS], METHODS)
