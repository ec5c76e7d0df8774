"""With upstream's noise, a seed gives the picture that the script of the model's authors draws, drafted or not.

The scripts: transformers' ``generate`` for Chameleon, Janus-Pro and Emu3; for the others, whose authors have loops of
their own, a plain loop in the published order. All draw with ``torch.multinomial`` and the seeded global generator.
"""

from functools import cache

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
from adt_lab.benchmark import sources
from tests.drafted import run
from tests.layouts import llamagen as llamagen_layout
from tests.layouts.families import load_small, write_both
from tests.layouts.janus import BEGIN_IMAGE, BOS, PAD
from tests.parity import test_janus, test_llamagen, test_lumina

PROMPT = "a cat"
KEPT = 11
BROKEN = Version("5") <= Version(transformers.__version__) < Version("5.5")  # Janus: it wants defaults that are gone
METHODS = {
    "plain": ("network", dict(method="autoregressive")),
    "network": ("network", dict(method="eagle2", depth=4, width=3, nodes=12)),
    "adt-tree": ("network", dict(method="adt-tree")),
    "window": ("jacobi", dict(method="eagle2", depth=12, width=1, nodes=12)),
    "network and window": ("network+jacobi", dict(method="eagle2", depth=12, width=3, nodes=16)),
    "auto": ("network", dict(method="auto")),
}
CASES = {
    "guided": (1, 0, Sampling(11, guidance=5.0, noise="upstream")),
    "cooler": (1, 0, Sampling(12, 0.7, guidance=3.0, noise="upstream")),
    "top-k": (1, 0, Sampling(13, 0.8, top_k=12, guidance=3.0, noise="upstream")),
    "top-p": (1, 0, Sampling(14, 0.9, top_p=0.9, guidance=2.0, noise="upstream")),
    "unguided": (1, 0, Sampling(15, guidance=1.0, noise="upstream")),
    "four": (4, 0, Sampling(16, guidance=3.0, noise="upstream")),
    "four, top-k and top-p": (4, 0, Sampling(17, 0.8, top_k=20, top_p=0.9, guidance=3.0, noise="upstream")),
    "continued": (1, KEPT, Sampling(18, guidance=3.0, noise="upstream")),
    "four, continued": (4, KEPT, Sampling(2**64 - 1, top_k=12, guidance=3.0, noise="upstream")),
}
"""Pictures of a batch, cells of each that are kept, and how tokens are drawn."""


# ---- transformers' scripts: of a prefix [B, P] and a sampling, the tokens [B, T] ------------------------------


def generate(model, target, prefix, sampling):
    """``generate`` from the prompt and a prefix on, with its own guidance, and the image's tokens alone allowed."""
    prompt, ids = target.encode_prompt(PROMPT), target.decoder.image_ids
    own, other = (
        torch.cat([torch.tensor([row] * len(prefix)), ids[prefix]], 1) for row in (prompt, target.unconditional(prompt))
    )
    guide = UnbatchedClassifierFreeGuidanceLogitsProcessor(sampling.guidance, model, unconditional_ids=other)
    whole = model.generate(
        own,
        attention_mask=torch.ones_like(own),
        logits_processor=[guide] if sampling.guidance != 1 else [],
        prefix_allowed_tokens_fn=lambda _, tokens: ids[legal(target, len(tokens) - len(prompt))].tolist(),
        max_new_tokens=target.length - prefix.shape[1],
        **warped(sampling),
    )
    places = torch.full((target.decoder.config.vocab_size,), -1).index_copy(0, ids, torch.arange(len(ids)))
    return places[whole[:, len(prompt) :]]


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
    return lambda prefix, sampling: generate(model, target, prefix, sampling)


def emu3(path, target):
    model = Emu3ForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    return lambda prefix, sampling: generate(model, target, prefix, sampling)


def janus(path, target):
    """Its ``generate`` knows no picture to continue and none without guidance: those are drawn as the authors do."""
    model = JanusForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    vocabulary = target.prompter.vocabulary
    model.generation_config.generation_kwargs = {"boi_token_id": vocabulary[BEGIN_IMAGE]}
    model.generation_config.bos_token_id, model.generation_config.pad_token_id = vocabulary[BOS], vocabulary[PAD]

    def script(prefix, sampling):
        if prefix.shape[1] or sampling.guidance == 1 or BROKEN:
            logits = lambda _, row, codes: test_janus.reference_logits(model, row, codes)[-1]  # noqa: E731
            return loop(logits, target, prefix, sampling, torch.arange(target.num_codes))
        rows = torch.tensor([target.encode_prompt(PROMPT)] * len(prefix))
        options = {"attention_mask": torch.ones_like(rows), "generation_mode": "image", **warped(sampling)}
        return model.generate(rows, guidance_scale=sampling.guidance, **options)

    return script


# ---- the authors' scripts -----------------------------------------------------------------------


def lumina(path, target):
    """LANTERN's loop: what begins an image belongs to the prompt, and a row's end is drawn like any token."""
    return among_all(test_lumina.reference(path), target)


def liquid(path, target):
    return among_all(GemmaForCausalLM.from_pretrained(path, attn_implementation="eager").eval(), target)


def among_all(model, target):
    """The loop of a script that samples from the whole vocabulary."""
    ids = target.decoder.image_ids

    def logits(_, row, codes):
        return model.lm_head(model.model(input_ids=torch.tensor([[*row, *ids[codes]]])).last_hidden_state[0, -1])

    return lambda prefix, sampling: loop(logits, target, prefix, sampling, ids)


def llamagen(path, target):
    tensors, side = llamagen_layout.transformer(), target.grid[0]
    features, hidden = test_llamagen.t5_features(path, PROMPT)
    captions = features, tensors["cls_embedding.uncond_embedding"]

    def logits(number, _, codes):
        return test_llamagen.reference(tensors, captions[number], hidden, codes, side)[1][-1]

    return lambda prefix, sampling: loop(logits, target, prefix, sampling, torch.arange(target.num_codes))


def loop(logits, target, tokens, sampling, columns):
    """Guidance, temperature, top-k, top-p, and one draw for the whole batch.

    logits: of a row's number (0 is the prompt's), its ids, and the codes behind them: the vector that is sampled from.
    columns: the place in it of every token. tokens: [B, P], from which it goes on.
    """
    prompt = target.encode_prompt(PROMPT)
    rows = list(enumerate([prompt, target.unconditional(prompt)]))
    for position in range(tokens.shape[1], target.length):
        own, other = (torch.stack([logits(*row, image.tolist()) for image in tokens]) for row in rows)
        z = other + sampling.guidance * (own - other) if sampling.guidance != 1 else own
        allowed = columns[legal(target, position)]
        z = torch.full_like(z, -torch.inf).index_copy(1, allowed, z[:, allowed] / sampling.temperature)
        if sampling.top_k:
            z[z < z.topk(sampling.top_k).values[:, -1:]] = -torch.inf
        ordered, order = z.sort(descending=True)
        p = ordered.softmax(-1)
        z[torch.zeros_like(z, dtype=torch.bool).scatter(1, order, p.cumsum(-1) - p > sampling.top_p)] = -torch.inf
        drawn = torch.multinomial(z.softmax(-1), 1)
        tokens = torch.cat([tokens, (drawn[:, :1] == columns).int().argmax(-1, keepdim=True)], 1)
    return tokens


SCRIPTS = {
    "chameleon": chameleon,
    "lumina": lumina,
    "emu3": emu3,
    "janus": janus,
    "liquid": liquid,
    "llamagen": llamagen,
}


# ---- against the engine --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Of a family: the target, its drafters by source, and its script."""

    @cache
    def load(family):
        path, network = write_both(family, tmp_path_factory.mktemp(family))
        target = load_small(family, path)
        return target, sources(load_drafter(network, target)), SCRIPTS[family](path, target)

    return load


@torch.no_grad()
def drawn_by(script, prefix, sampling):
    with torch.random.fork_rng():
        torch.manual_seed(sampling.seed)
        return script(prefix, sampling)


def prefix_of(target, images, kept):
    """Tokens [B, P] of so many cells, any that are possible."""
    return torch.randint(target.num_codes, (images, kept), generator=torch.Generator().manual_seed(images))


@pytest.mark.parametrize("family", SCRIPTS)
@pytest.mark.parametrize("case", CASES)
def test_a_seeds_picture_is_the_scripts(family, case, loaded):
    """Drafted in two ways, which change from case to case, and plain."""
    target, drafters, script = loaded(family)
    images, kept, sampling = CASES[case]
    cells = prefix_of(target, images, kept)
    expected = drawn_by(script, target.tokens(cells), sampling)
    assert expected.shape == (images, target.length)
    drafted, first = list(METHODS)[1:], list(CASES).index(case)
    for name in ("plain", *(drafted[(first + more) % len(drafted)] for more in (0, 2))):
        source, options = METHODS[name]
        drafting = Drafting(**options)
        how = {"sampling": sampling, "prefix": cells, "image_indices": list(range(images)), "drafting": drafting}
        drawn = run(target, drafters[source], (PROMPT,) * images, **how)
        assert drawn.codes.tolist() == expected.tolist(), name
    assert len(set(expected.flatten().tolist())) > 4
