"""What training keeps, and reads when it goes on, may be damaged or somebody else's: that is one sentence."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from adt_core.errors import AdtError
from adt_lab.training.features import Features
from adt_lab.training.pictures import Pictures
from adt_lab.training.run import Run

SHAPE, KINDS = (2, 4), 8
CODES = {
    "one dimension": np.zeros(5, np.int32),
    "none": np.int32(5),
    "texts": np.full(SHAPE, "abc"),
    "fields": np.zeros(SHAPE, [("a", "i4")]),
    "fractions": np.full(SHAPE, np.nan),
    "tokens that there are not": np.full(SHAPE, KINDS, np.int32),
}


@pytest.mark.parametrize("name", CODES)
def test_codes_of_pictures(tmp_path, name):
    path = tmp_path / "codes.npy"
    np.save(path, CODES[name])
    with pytest.raises(AdtError, match="codes.npy holds .*; delete it, or name another output"):
        Pictures(path, ["a cat", "a dog"], SHAPE[1], KINDS)
    np.save(path, np.full(SHAPE, KINDS - 1, np.int32))
    assert (Pictures(path, ["a cat", "a dog"], SHAPE[1], KINDS).codes([0, 1]) == KINDS - 1).all()


def begun(path) -> Run:
    model = nn.Linear(2, 3)
    return Run(path, model, [torch.optim.AdamW(model.parameters())], minutes=None, decay=0.9, steps=4)


@pytest.mark.parametrize(
    "odd",
    [b"", b"x" * 99, [1], {}, {"model": {}}, {"average": {}}, {"optimisers": []}, {"step": "x"}, {"elapsed": None}],
)
def test_a_checkpoint_of_training(tmp_path, odd):
    path = tmp_path / "checkpoint.pt"
    begun(path).save()
    sound = torch.load(path, weights_only=True)
    assert begun(path).step == 0
    if isinstance(odd, bytes):
        path.write_bytes(odd)
    else:
        torch.save({**sound, **odd} if odd and isinstance(odd, dict) else odd, path)
    with pytest.raises(AdtError, match="checkpoint.pt' is damaged, or of another run .*; delete it to begin anew"):
        begun(path)


def test_kept_features(tmp_path):
    save_file({"0": torch.zeros(4, 8, dtype=torch.float16)}, tmp_path / "0.safetensors")
    (tmp_path / "1.safetensors").write_bytes(b"x" * 99)
    features = Features(tmp_path, 0)
    assert features.get([0], [0], torch.device("cpu")).shape == (1, 4, 8)
    for numbers, pads in (([1], [0]), ([0], [0, 0])):
        with pytest.raises(AdtError, match=f"'{tmp_path}' holds a damaged file .*; delete it, and start again"):
            features.get(numbers, pads, torch.device("cpu"))
