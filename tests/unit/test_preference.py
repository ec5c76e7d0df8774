"""Learning from its own pictures: the better of two pictures of a caption becomes likelier."""

from itertools import repeat

import numpy as np
import torch

from adt_core import load_target
from model_making.asking import Wanted
from model_making.judging import Judged
from model_making.preference import Artist, Pair, leads, learn_from, pairs_of, worth
from model_making.progress import TimedRun
from model_making.sequences import Sequences, build_vocabulary
from model_making.target import CONTENT_IDS, NUM_CODES, Student, make_decoder
from model_making.tokenise import make_tokenizer
from model_making.wording import Said

CAPTION = [Said("red"), Said("house", asks=(Wanted(("house",), "red"),)), Said("night", asks=("sky:night",))]


def bundled_student() -> tuple[Student, Sequences]:
    names = build_vocabulary(make_tokenizer().get_vocab(), NUM_CODES)
    student = Student(make_decoder(names))
    student.decoder.load_state_dict(load_target().decoder.state_dict())
    return student, Sequences(np.zeros((1, 256), np.uint16), [], names, CONTENT_IDS)


def test_worth_is_the_share_that_is_there_and_there_once():
    assert worth(Judged({"thing:red house": True, "sky:night": False}, [True], [True])) == 2 / 3
    assert worth(Judged({"sky:night": False}, [], [])) == 0


def test_pairs_set_the_best_against_the_worst_and_leave_out_what_is_worth_the_same():
    codes = np.arange(4)[:, None]
    pairs = [(int(p.better[0]), int(p.worse[0])) for p in pairs_of(CAPTION, codes, [0.5, 1.0, 0.0, 0.5])]
    assert pairs == [(1, 2)]
    assert len(list(pairs_of(CAPTION, codes, [0.0, 1.0, 0.5, 0.75]))) == 2
    assert not list(pairs_of(CAPTION, codes, [1.0] * 4))


def test_the_better_picture_becomes_likelier_than_the_worse(tmp_path):
    student, sequences = bundled_student()
    codes = np.random.default_rng(0).integers(0, NUM_CODES, (2, 256)).astype(np.uint16)
    pairs = [Pair(CAPTION, *codes)] * 4
    optimiser = torch.optim.AdamW(student.parameters(), 1e-4)
    optimiser.param_groups[0]["peak"] = 1e-4
    run = TimedRun(tmp_path / "preference.pt", student, [optimiser], minutes=60, decay=0.9)
    with torch.no_grad():
        before = leads(student, sequences, pairs[:1]).item()
        for _ in range(3):
            with torch.enable_grad():
                learn_from(student, run, sequences, pairs, repeat(torch.zeros(())))
        assert leads(student, sequences, pairs[:1]).item() > before + 1


def test_it_draws_several_pictures_of_a_caption_and_judges_them():
    student, _ = bundled_student()
    pairs, worths = Artist(guidance=2.0).pairs(student, [CAPTION, CAPTION[1:2]], first=0)
    assert len(worths) == 8 and 0 <= min(worths) and max(worths) <= 1 and np.mean(worths) > 0.3
    assert all(pair.better.shape == (256,) and (pair.better != pair.worse).any() for pair in pairs)
