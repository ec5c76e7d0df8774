"""Tests with checkpoints of real size.

``inspect`` must read only headers. Loading must not make a second copy of the weights.
"""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.inspect import inspect
from adt_core.drafters.jacobi import JacobiDrafter
from adt_core.engine.device.memory import GRAPH_BYTES
from adt_core.models.target import EncodedPrompt
from adt_core.models.vq import VQConfig, VQModel
from model_making.sequences import image_token
from tests.drafted import new_decoding, run
from tests.layouts.llamagen import write_upstream
from tests.tiny import byte_tokenizer, write_tiny_checkpoint

ROOT = Path(__file__).parents[3]
ANOLE = dict(
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    vocab_size=65536,
)


VOCABULARY = {image_token(code): code + 4 for code in range(8192)}
VOCABULARY |= {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
VOCABULARY |= {"<eoss>": 8196, "<racm3:break>": 8197, "<reserved08706>": 8710, "<image>": 8711}


def write_sparse(folder: Path, shape: dict, shards: int) -> int:
    """Write a checkpoint in Anole's layout as sparse files of zeros. Return the size of its weights in bytes."""
    folder.mkdir()
    others = {"model_type": "chameleon", "vocabulary_map": VOCABULARY, "vq_config": {}}
    others |= {"rope_theta": 10000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(shape | others), encoding="utf-8")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    sizes = anoles_tensors(shape)
    names = list(sizes)
    total = 0
    files = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = names[shard::shards]
        total += write_sparse_file(folder / file, {name: sizes[name] for name in own})
        files |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    return total


def anoles_tensors(shape: dict) -> dict[str, tuple[int, ...]]:
    """Return the size of each tensor of a model with this shape. Keys are tensor names."""
    h = shape["hidden_size"]
    wide = shape["intermediate_size"]
    heads = shape["num_attention_heads"]
    words = shape["vocab_size"]
    tensors = {"model.embed_tokens.weight": (words, h), "lm_head.weight": (words, h), "model.norm.weight": (h,)}
    for i in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        tensors |= {f"{layer}.self_attn.{x}_proj.weight": (h, h) for x in "qkvo"}
        norms = [f"{layer}.self_attn.{x}_norm.{kind}" for x in "qk" for kind in ("weight", "bias")]
        tensors |= dict.fromkeys(norms, (heads, h // heads))
        tensors |= {f"{layer}.mlp.{x}_proj.weight": (wide, h) for x in ("gate", "up")}
        tensors[f"{layer}.mlp.down_proj.weight"] = (h, wide)
        tensors |= {f"{layer}.{x}.weight": (h,) for x in ("input_layernorm", "post_attention_layernorm")}
    with torch.device("meta"):
        codec = VQModel(VQConfig())
    return tensors | {f"model.vqmodel.{name}": tuple(p.shape) for name, p in codec.named_parameters()}


def write_sparse_file(file: Path, sizes: dict[str, tuple[int, ...]]) -> int:
    """Write a sparse safetensors file of zeros. Return the size of its tensors in bytes."""
    end = 0
    header = {}
    for name, size in sizes.items():
        start = end
        end = end + 2 * torch.Size(size).numel()
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
    return end


def test_inspect_does_not_read_seven_billion_parameters(tmp_path):
    total = write_sparse(tmp_path / "Anole-7b-v0.1-hf", ANOLE, shards=3)
    started = time.process_time()
    (found,) = inspect(str(tmp_path / "Anole-7b-v0.1-hf"))
    assert time.process_time() - started < 10  # seconds; reading the weights would need minutes
    facts = {"family": "chameleon", "grid": [32, 32], "pixels": [512, 512], "dtype": "BF16"}
    assert {name: found[name] for name in facts} == facts
    assert found["missing"] == found["left_over"] == found["wrong_shape"] == found["to_do"] == []
    assert found["parameters"] * 2 == total and 7.0e9 < found["parameters"] < 7.2e9
    memory = found["memory"]
    assert 26e9 < memory["float32"] < 32e9 and 13e9 < memory["bfloat16"] < 17.5e9 and memory["int8"] < 11e9
    assert 7.5e9 < memory["int4"] < 8 * 2**30


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_inspect_states_the_memory_that_a_decoding_requires(tiny, weights):
    """The stated memory must include the weights and one image with `auto` on a GPU, with CUDA graphs."""
    target = load_target(tiny / "target", dtype=torch.bfloat16, weights=weights)
    row = [EncodedPrompt([0] * 64)]
    drafting = {"drafting": Drafting("auto"), "drafter": JacobiDrafter()}
    decoding = new_decoding(target, row, negatives=row, sampling=Sampling(guidance_scale=2.0), **drafting)
    parts = [*target.decoder.state_dict().values(), *target.codec.parameters()]
    stored = sum(part.numel() * part.element_size() for part in parts)
    (found,) = inspect(str(tiny / "target"))
    assert found["memory"][weights or "bfloat16"] == stored + decoding.memory_required(torch.device("meta"))
    assert decoding.memory_required(torch.device("meta")) > decoding.memory_required() + GRAPH_BYTES


def move_as_comfyui_does(module):
    """Set ``param.data`` outside of inference mode, like ComfyUI's ModelPatcher, but change the dtype."""
    for parameter in module.parameters():
        assert not parameter.is_inference()
        parameter.data = parameter.data.to(torch.float64)
    module.to(torch.float64)


@pytest.mark.parametrize("family", ["chameleon", pytest.param("llamagen", marks=pytest.mark.long)])
def test_weights_loaded_in_inference_mode_can_be_moved_outside_of_it(tiny, tmp_path, family):
    """The test covers the transformer, the codec, LlamaGen's text encoder, and a drafter."""
    with torch.inference_mode():
        folder = tiny / "target" if family == "chameleon" else write_upstream(tmp_path / "llamagen")
        target = load_target(folder)
        drafter = load_drafter(tiny / "drafter", target) if family == "chameleon" else None
    for module in (target.decoder, target.codec, target.text_encoder, drafter):
        if module is not None:
            move_as_comfyui_does(module)
    length = len(target.encode_prompt("a cat"))  # also reads weights outside of inference mode
    assert length > 0 and target.decoder.embedding[0].isfinite().all()
    drafting = Drafting("adt-tree") if drafter else Drafting(method="no-drafting")
    codes = run(target, drafter, drafting=drafting).codes
    with torch.inference_mode():
        assert (codes >= 0).all() and target.codec.decode(target.cells(codes)).isfinite().all()


LOADED = "import sys, adt_core; adt_core.load_target(sys.argv[1]); print('torch._dynamo' in sys.modules)"


@pytest.mark.long
def test_loading_does_not_import_the_compiler(tmp_path):
    """The import of the compiler needs two seconds, and loading doesn't use it."""
    command = [sys.executable, "-c", LOADED, str(write_tiny_checkpoint(tmp_path / "target"))]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "False\n"


PEAK = """
import re, sys
import torch
import adt_core

def memory(kind):
    with open("/proc/self/status") as file:
        return int(re.search(kind + r":\\s+(\\d+) kB", file.read())[1]) * 1024

before = memory("VmRSS")
target = adt_core.load_target(sys.argv[1], dtype=torch.bfloat16, weights=sys.argv[2] or None)
parts = [*target.decoder.state_dict().values(), *target.codec.state_dict().values()]
print(sum(part.numel() * part.element_size() for part in parts), memory("VmRSS") - before, memory("VmHWM") - before)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's accounting")
@pytest.mark.parametrize("weights", ["", "int8"], ids=["as stored", "int8"])
def test_peak_memory_of_loading(tmp_path, weights):
    """Loading 1.6 GB in three shards may need the memory of the weights and of one shard, but no second copy."""
    write_sparse(tmp_path / "anole", {**ANOLE, "num_hidden_layers": 1}, shards=3)
    largest = max(file.stat().st_size for file in (tmp_path / "anole").glob("*.safetensors"))
    command = [sys.executable, "-c", PEAK, str(tmp_path / "anole"), weights]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    stored, after, peak = map(int, out.split())
    assert after > 0.98 * stored, "the weights are not in memory"
    assert peak < stored + largest
