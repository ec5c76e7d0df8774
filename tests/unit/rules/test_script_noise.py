"""Tests of the noise of original scripts: the random numbers of the scripts that the models' authors published.

It must equal the noise of `torch.multinomial` with the same generator. PNGs must record the kind of noise.
tests/parity/test_script_noise.py compares complete images with the original scripts.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from adt_core import Drafting, Pipeline, Recipe, Sampling, cli
from adt_core.rules.noise import Noise
from adt_core.rules.script_noise import ScriptNoise
from adt_core.run import png_settings
from adt_core.run.identity import settings_key
from adt_core.run.images import read_settings
from tests.command import read_lines
from tests.drafted import new_decoding, run
from tests.raising import raises_key

LENGTH, WIDTH, SEED = 23, 50, 7
COLUMNS = torch.tensor([3, 4, 8, 40, 41, 49])
SCRIPT = Sampling(SEED, noise="original-script")


def calls(seed=SEED, together=1, count=LENGTH, width=WIDTH, columns=COLUMNS):
    """Return the noise [count, images of a batch, V] of consecutive calls of `torch.multinomial` in a script."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.empty(together, width).exponential_(generator=generator) for _ in range(count)]
    return -torch.stack(drawn)[..., columns].log()


def noise(kind, indices, ahead=3, seed=SEED):
    return Noise([(seed, index) for index in indices], LENGTH, len(COLUMNS), ahead, torch.empty(0), kind=kind)


# ---- the numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [8, 50, 4096])
@pytest.mark.parametrize("together", [1, 3])
def test_the_most_probable_token_with_noise_equals_multinomial(width, together):
    """The test has 20 consecutive draws of every seed. Half of the tokens have probability 0."""
    columns = torch.arange(width)
    for seed in (0, 1, 2**63, 2**64 - 1):
        logits = torch.randn(20, together, width, generator=torch.Generator().manual_seed(1)) * 3
        logits[..., ::2] = -torch.inf
        generator = torch.Generator().manual_seed(seed)
        expected = torch.cat([torch.multinomial(z.softmax(-1), 1, generator=generator).T for z in logits])
        rows = calls(seed, together, 20, width, columns)
        kind = ScriptNoise(width, columns, together)
        made = torch.stack([kind((seed, index))(range(20)) for index in range(together)], 1)
        assert torch.equal(made, rows) and torch.equal((logits + made).argmax(-1), expected)


def test_other_implementations_of_exponential_numbers_use_torch(monkeypatch):
    made = []
    for known in (True, False):
        monkeypatch.setattr("adt_core.rules.script_noise.exponential_uses_uniform", lambda known=known: known)
        made.append(ScriptNoise(WIDTH, COLUMNS, 2)((SEED, 1))(range(LENGTH)))
    assert made[0].equal(made[1]) and made[0].equal(calls(together=2)[:, 1])


@pytest.mark.parametrize("kept", [0, 2, 100])
def test_images_of_a_batch_are_rows_of_the_same_calls(kept):
    kind = ScriptNoise(WIDTH, COLUMNS, 3, kept=kept)
    whole = calls(together=3)
    rows = {index: kind((SEED, index)) for index in (2, 0, 1)}
    for index, positions in [(2, range(4)), (0, range(4)), (2, range(4, 9)), (1, range(4)), (0, range(4, 9))]:
        assert torch.equal(rows[index](positions), whole[positions.start : positions.stop, index])


def test_noise_of_other_images_is_drawn_once(monkeypatch):
    kind = ScriptNoise(WIDTH, COLUMNS, 2, kept=8)
    drawn = []
    draw = ScriptNoise._make
    monkeypatch.setattr(ScriptNoise, "_make", lambda *given: drawn.append(given[2]) or draw(*given))
    one = kind((SEED, 0))
    other = kind((SEED, 1))
    for ahead in (one, other):
        for first in (0, 4):
            ahead(range(first, first + 4))
    assert drawn == [range(4), range(4, 8)]
    one(range(8, 12))
    assert len(kind._kept) == 2, "old noise must be dropped, so that memory is bounded"


def test_the_first_call_belongs_to_the_first_generated_token():
    rows = ScriptNoise(WIDTH, COLUMNS, 1, start=6)((SEED, 0))
    assert torch.equal(rows(range(4, 9))[2:], calls()[:3, 0]) and rows(range(9, 11)).equal(calls()[3:5, 0])
    assert torch.equal(rows(range(14, 16)), calls()[8:10, 0]), "skipped positions must use up their noise"
    later = ScriptNoise(WIDTH, COLUMNS, 1, before=3)((SEED, 0))
    assert torch.equal(later(range(4)), calls()[3:7, 0]), "earlier calls of the script must use up their noise"


def test_noise_in_the_ring_buffer():
    """The values must also be right after images are suspended and replaced by images with other seeds."""
    ring = noise(ScriptNoise(WIDTH, COLUMNS, 3, kept=6), (0, 1, 2))
    ring.prepare([5, 9, 2])
    ring.select(torch.tensor([1, 2]))
    ring.admit(torch.tensor([0]), noise(ScriptNoise(WIDTH, COLUMNS, 1), (0,), seed=1))
    ring.prepare([0, 4])
    at = ring.at(torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]))
    assert torch.equal(at, torch.stack([calls(1)[:4, 0], calls(together=3)[4:8, 2]]))


def test_global_generators_are_not_changed():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    noise(ScriptNoise(WIDTH, COLUMNS, 2), (0, 1)).prepare([0, 0])
    assert torch.equal(before, torch.get_rng_state())


# ---- in a decoding -------------------------------------------------------------------------------


PROMPTS = ("a cat",) * 4
INDICES = [0, 1, 2, 3]


@pytest.mark.parametrize("batch_size", [None, 3, 1])
def test_images_do_not_depend_on_the_batch_size(models, batch_size):
    target, drafter = models
    whole = run(target, None, PROMPTS, sampling=SCRIPT, image_indices=INDICES).codes
    how = {"drafting": Drafting("adt-tree"), "image_indices": INDICES, "batch_size": batch_size}
    assert torch.equal(run(target, drafter, PROMPTS, sampling=SCRIPT, **how).codes, whole)
    assert len({tuple(codes) for codes in whole.tolist()}) == 4
    alone = replace(SCRIPT, noise_batch=4)
    assert torch.equal(run(target, None, PROMPTS[:1], sampling=alone, image_indices=[2]).codes[0], whole[2])


def test_prompts_do_not_affect_each_other(models):
    target, drafter = models
    prompts = ("a cat", "a dog", "a cat")
    seeds = [3, 3, 4]
    drawn = run(target, drafter, prompts, sampling=SCRIPT, seeds=seeds, drafting=Drafting("adt-tree")).codes
    for prompt, seed, codes in zip(prompts, seeds, drawn):
        assert torch.equal(run(target, None, (prompt,), sampling=replace(SCRIPT, seed=seed)).codes[0], codes)


def test_an_index_beyond_the_batch_is_rejected(models):
    target, _ = models
    with raises_key("noise_batch.too_small", value=2, least=4):
        how = {"sampling": replace(SCRIPT, noise_batch=2), "drafting": Drafting("no-drafting")}
        new_decoding(target, [target.encode_prompt("a cat")], image_indices=[3], **how)


def test_memory_for_the_noise_of_other_images(models):
    target, _ = models

    def needed(images, sampling):
        plain = {"drafting": Drafting("no-drafting"), "image_indices": list(range(images)), "sampling": sampling}
        return new_decoding(target, [target.encode_prompt("a cat")] * images, **plain).memory_required()

    assert needed(1, SCRIPT) == needed(1, Sampling(SEED))
    small = 4 * target.length * target.num_tokens * 8  # complete noise of the other three images
    assert needed(4, SCRIPT) - needed(4, Sampling(SEED)) == small


# ---- in output files ----------------------------------------------------------------------------


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch, capsys):
    """Return a function that runs `generate` in an empty folder. It returns the exit code and the output."""
    monkeypatch.chdir(tmp_path)
    models = ["--model", tiny / "target", "--drafter", tiny / "drafter", "--device", "cpu"]

    def run(*options):
        code = cli.main(list(map(str, ["generate", *models, *options])))
        return code, "".join(capsys.readouterr())

    return run


def test_images_of_a_batch_are_reproduced(generate):
    options = "--prompt", "a cat", "--noise", "original-script", "--seed", 3
    assert generate(*options, "--num-images-per-prompt", 3, "--output", "x.png", "--trace", "t.json")[0] == 0
    assert generate(*options, "--output", "single.png")[0] == 0
    saved = read_settings(Path("x-0003.png"))
    expected = {"noise": "original-script", "noise_batch": 3, "noise_device": "cpu", "image_index": 2}
    assert expected.items() <= saved.items()
    assert generate("--from-png", "x-0003.png", "--output", "again.png")[0] == 0
    with Image.open("x-0003.png") as one, Image.open("again.png") as two, Image.open("single.png") as single:
        assert one.tobytes() == two.tobytes() != single.tobytes()
        assert one.text["parameters"] == two.text["parameters"]
    trace = read_lines("t.json")[0]["report"]
    assert trace["sampling"]["noise"] == "original-script"
    assert (trace["noise_batch"], trace["noise_device"]) == (3, "cpu")


def test_noise_of_another_device_is_rejected(generate, monkeypatch):
    assert generate("--prompt", "a cat", "--noise", "original-script", "--output", "a.png")[0] == 0
    monkeypatch.setattr(png_settings, "noise_device", lambda device: "NVIDIA RTX 4090")
    code, err = generate("--from-png", "a.png", "--output", "again.png")
    assert code == 1 and "the original script's noise on 'cpu'" in err
    assert "--device NVIDIA RTX 4090 makes other noise" in err and "choose --noise adt-tree" in err
    assert generate("--from-png", "a.png", "--noise", "adt-tree", "--output", "own.png")[0] == 0
    saved = read_settings(Path("own.png"))
    assert saved["noise"] == "adt-tree" and "noise_device" not in saved
    assert generate("--from-png", "own.png", "--noise", "original-script", "--output", "theirs.png")[0] == 0
    with Image.open("a.png") as one, Image.open("theirs.png") as two:
        assert one.tobytes() == two.tobytes(), "an image with keyed noise can be generated with the noise of any device"


def test_noise_changes_the_folder_of_a_batch(models, monkeypatch):
    pipeline = Pipeline(models[0], Recipe(Sampling(SEED)))
    changed = replace(pipeline, recipe=Recipe(SCRIPT))
    keys = [settings_key(pipeline), settings_key(changed)]
    monkeypatch.setattr("adt_core.run.identity.noise_device", lambda device: "another")
    keys.append(settings_key(changed))
    assert len(set(keys)) == 3 and settings_key(pipeline) == keys[0]
