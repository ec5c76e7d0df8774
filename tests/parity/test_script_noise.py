"""Tests of the noise of original scripts: a seed must give the same image as the model authors' script.

This must hold with and without drafting. The script is transformers' ``generate`` for Chameleon, Janus-Pro and Emu3.
For the other families, :func:`loop` reimplements the published script. All scripts sample with ``torch.multinomial``
and a seeded generator.

Tensor dimensions: B images per seed, S seeds, N = S * B images, P given tokens (prefix), T tokens of a complete image,
V tokens in the logits.
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
from adt_core.engine.kept import KeptTokens
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
# in these versions, ``generate`` fails for Janus, because defaults of the configuration are missing
BROKEN = Version("5") <= Version(transformers.__version__) < Version("5.5")
METHODS = {
    "plain": ("network", dict(method="no-drafting")),
    "adt-tree": ("network", dict(method="adt-tree")),
    "window": ("jacobi", dict(method="eagle2", depth=12, width=1, drafts=12)),
    "network and window": ("network+jacobi", dict(method="eagle2", depth=12, width=3, drafts=16)),
    "auto": ("network", dict(method="auto")),
}
SAMPLINGS = {
    "from all": dict(temperature=1.0),
    "cooler": dict(temperature=0.7),
    "top-k": dict(temperature=1.0, top_k=12),
    "top-p, cooler": dict(temperature=0.7, top_p=0.9),
}
"""Published temperatures, top-k and top-p. The values of k are smaller, because the small models have fewer codes."""
GUIDANCE = {"guided": 5.0, "unguided": 1.0}
IMAGES = {"one": 1, "four": 4}
KEPT = {"whole": 0, "continued": 11}  # number of given tokens (prefix) of each image
SEEDS = {str(seed): seed for seed in (0, 11, 2**32 + 1, 2**63, 2**64 - 1)}
MORE_SEEDS = (1, 12, 13)  # additional seeds of the long test


# ---- transformers' scripts -----------------------------------------------------------------------
#
# A script is a function (prefix [B, P], Sampling, S seeds) -> tokens [N, T].


def seeded(draw, seeds):
    """Call ``draw`` once for each seed, with the global generator set to the seed. Concatenate the results."""
    with torch.random.fork_rng():
        return torch.cat([torch.manual_seed(seed) and draw() for seed in seeds])


def generate(model, target, prefix, sampling, seeds):
    """Call transformers' ``generate`` with a prefix and transformers' guidance. Only image tokens are allowed."""
    prompt = target.encode_prompt(PROMPT)
    ids = target.decoder.image_ids
    conditional, unconditional = (
        torch.cat([torch.tensor([row] * len(prefix)), ids[prefix]], 1) for row in (prompt, target.unconditional(prompt))
    )

    def draw():
        scale = sampling.guidance_scale
        guide = UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model, unconditional_ids=unconditional)
        return model.generate(
            conditional,
            attention_mask=torch.ones_like(conditional),
            logits_processor=[guide] if scale != 1 else [],
            prefix_allowed_tokens_fn=lambda _, tokens: ids[allowed_tokens(target, len(tokens) - len(prompt))].tolist(),
            max_new_tokens=target.length - prefix.shape[1],
            **generate_options(sampling),
        )

    numbers = torch.full((target.decoder.config.vocab_size,), -1).index_copy(0, ids, torch.arange(len(ids)))
    return numbers[seeded(draw, seeds)[:, len(prompt) :]]


def allowed_tokens(target, position):
    """Return the image tokens that are allowed at a position: at the end of a row its token, else all codes."""
    at_row_end = target.row_end and (position + 1) % target.columns == 0
    return torch.tensor([target.num_codes]) if at_row_end else torch.arange(target.num_codes)


def generate_options(sampling):
    """Convert a Sampling to options of ``generate``."""
    return {"do_sample": True, **{name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}}


def chameleon(path, target):
    """Return the script for Chameleon. The model's mask of image tokens is removed."""
    model = ChameleonForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []
    return partial(generate, model, target)


def emu3(path, target):
    model = Emu3ForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    return partial(generate, model, target)


def glm_image(path, target):
    """Return the script for GLM-Image. It supports neither guidance nor a prefix; :func:`loop` replaces it then."""
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
        if prefix.shape[1] or sampling.guidance_scale != 1:
            return loop(logits, target, torch.arange(target.num_codes), 0, prefix, sampling, seeds)
        rows = torch.tensor([target.encode_prompt(PROMPT)] * len(prefix))
        allowed = list(range(target.num_codes))
        options = {"max_new_tokens": target.length, "prefix_allowed_tokens_fn": lambda *_: allowed}
        options |= generate_options(sampling)
        return seeded(lambda: model.generate(**inputs(rows), **options)[:, rows.shape[1] :], seeds)

    return script


def janus(path, target):
    """Return the script for Janus-Pro. It requires guidance and supports no prefix; else :func:`loop` replaces it."""
    model = JanusForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    vocabulary = target.prompter.vocabulary
    model.generation_config.generation_kwargs = {"boi_token_id": vocabulary[BEGIN_IMAGE]}
    model.generation_config.bos_token_id = vocabulary[BOS]
    model.generation_config.pad_token_id = vocabulary[PAD]

    def logits(_, row, images):
        return torch.stack([test_janus.reference_logits(model, row, codes)[-1] for codes in images.tolist()])

    def script(prefix, sampling, seeds):
        if prefix.shape[1] or sampling.guidance_scale == 1 or BROKEN:
            return loop(logits, target, torch.arange(target.num_codes), 0, prefix, sampling, seeds)
        rows = torch.tensor([target.encode_prompt(PROMPT)] * len(prefix))
        options = {"attention_mask": torch.ones_like(rows), "generation_mode": "image", **generate_options(sampling)}
        return seeded(lambda: model.generate(rows, guidance_scale=sampling.guidance_scale, **options), seeds)

    return script


# ---- the authors' scripts -----------------------------------------------------------------------


def full_vocabulary(load_model, header, path, target):
    """Return :func:`loop` for a model whose script samples from the full vocabulary. See there for ``header``."""
    model = load_model(path)
    ids = target.decoder.image_ids

    def logits(_, row, images):
        rows = torch.cat([torch.tensor([row] * len(images)), ids[images]], 1)
        return model.lm_head(model.model(input_ids=rows).last_hidden_state[:, -1])

    return partial(loop, logits, target, ids, header)


def lumina2(path):
    return reference(path, ".vqmodel.", vocabulary_map={"<image>": 0}, bos_token_id=0)


def gemma(path):
    return GemmaForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def llamagen(path, target):
    tensors = llamagen_layout.transformer()
    side = target.grid[0]
    features, hidden = test_llamagen.t5_features(path, PROMPT)
    captions = (features, tensors["cls_embedding.uncond_embedding"])

    def logits(number, _, images):
        def read(codes):
            return test_llamagen.reference(tensors, captions[number], hidden, codes, side)[1][-1]

        return torch.vmap(read)(images)

    return partial(loop, logits, target, torch.arange(target.num_codes), 0)


def loop(logits, target, columns, header, prefix, sampling, seeds):
    """Generate images token by token, with guidance, temperature, top-k and top-p.

    The images of a seed are one batch. For each token, one call of ``torch.multinomial`` samples the complete batch.

    Args:
        logits: Function (row number, prompt ids, tokens [N, n]) -> logits [N, V] of the next token. Row 0 is the
            conditional prompt, row 1 the unconditional prompt.
        columns: Index of each image token in the last dimension of the logits.
        header: Number of tokens at the end of the prompt that the script also samples if there is no prefix. Each of
            them has probability 1, but the call advances the generator.
        prefix: Given tokens [B, P].

    Returns:
        Tokens [N, T].
    """
    prompt = target.encode_prompt(PROMPT)
    tokens = prefix.repeat(len(seeds), 1)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    scale = target.guidance(sampling.guidance_scale, torch.empty(0))
    for position in range(prefix.shape[1] or -header, target.length):
        z, unconditional = (logits(i, row, tokens) for i, row in enumerate([prompt, target.unconditional(prompt)]))
        p = torch.zeros_like(z)
        if position < 0:
            p[:, prompt[position]] = 1
        else:
            factor = scale if isinstance(scale, float) else scale[position]
            z = unconditional + factor * (z - unconditional) if sampling.guidance_scale != 1 else z
            allowed = columns[allowed_tokens(target, position)]
            p[:, allowed] = filtered(z[:, allowed] / sampling.temperature, sampling).softmax(-1)
        batches = zip(p.chunk(len(seeds)), generators)
        drawn = torch.cat([torch.multinomial(batch, 1, generator=generator) for batch, generator in batches])
        if position >= 0:
            tokens = torch.cat([tokens, (drawn == columns).int().argmax(-1, keepdim=True)], 1)
    return tokens


def filtered(z, sampling):
    """Return the logits [N, V]. Those that top-k and top-p exclude are minus infinity."""
    if 0 < sampling.top_k < z.shape[1]:
        z = z.masked_fill(z < z.topk(sampling.top_k).values[:, -1:], -torch.inf)
    ordered, order = z.sort(descending=True)
    p = ordered.softmax(-1)
    beyond = p.cumsum(-1) - p > sampling.top_p
    return z.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), -torch.inf)


SCRIPTS = {
    "chameleon": chameleon,
    "lumina": partial(full_vocabulary, reference, 3),
    "lumina-mgpt-2": partial(full_vocabulary, lumina2, 3),
    "emu3": emu3,
    "janus": janus,
    "liquid": partial(full_vocabulary, gemma, 0),
    "llamagen": llamagen,
}
if "glm-image" in WRITERS:
    SCRIPTS["glm-image"] = glm_image


# ---- against the engine --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function that loads a family. It returns the target, a dictionary of its drafters, and its script."""

    @cache
    def load(family):
        path, network = write_both(family, tmp_path_factory.mktemp(family))
        target = load_small(family, path)
        return target, drafters_by_name(load_drafter(network, target)), SCRIPTS[family](path, target)

    return load


@torch.no_grad()
def compare(models, case, seeds, methods):
    """Check that every method gives the same images as the script. A method decodes all images as one batch.

    Args:
        case: Axis -> value, for all axes of `AXES`.
        methods: Names of methods in `METHODS`.
    """
    target, drafters, script = models
    images = IMAGES[case["images"]]
    kept = KEPT[case["kept"]]
    sampling = Sampling(guidance_scale=GUIDANCE[case["guidance"]], noise="original-script", **SAMPLINGS[case["drawn"]])
    cells = torch.randint(target.num_codes, (images, kept), generator=torch.Generator().manual_seed(images))
    given = KeptTokens.of(cells, images, target)
    expected = script(given.tokens[:, : given.start], sampling, seeds)
    assert expected.shape == (images * len(seeds), target.length)
    options = {
        "sampling": sampling,
        "seeds": [seed for seed in seeds for _ in range(images)],
        "image_indices": [*range(images)] * len(seeds),
        "kept": cells.repeat(len(seeds), 1),
    }
    for method in methods:
        source, drafting = METHODS[method]
        decoding = run(target, drafters[source], (PROMPT,) * len(expected), drafting=Drafting(**drafting), **options)
        assert decoding.codes.tolist() == expected.tolist(), method
    assert len(set(expected.flatten().tolist())) > 4


AXES = {"family": SCRIPTS, "drawn": SAMPLINGS, "guidance": GUIDANCE, "images": IMAGES, "kept": KEPT}
CASES = pairwise({axis: list(values) for axis, values in AXES.items()})
"""Cases of the long test. Each case runs with every seed and every method."""
QUICK = [
    row
    for row in pairwise({**AXES, "method": list(METHODS), "seed": list(SEEDS)})
    if row["family"] != "liquid" or row["images"] == "one"
]
"""Cases of the quick test. Liquid is slow because of its large vocabulary, so it generates only one image."""


@pytest.mark.parametrize("row", each_once(QUICK), ids=lambda row: ", ".join(row.values()))
def test_image_of_a_seed_equals_the_scripts(row, loaded):
    compare(loaded(row["family"]), row, [SEEDS[row["seed"]]], [row["method"]])


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(case.values()))
def test_images_of_all_seeds_and_methods_equal_the_scripts(case, loaded):
    compare(loaded(case["family"]), case, [*SEEDS.values(), *MORE_SEEDS], METHODS)
