"""Stage 5: train the EAGLE drafter.

    python -m training.drafter --tokens DIR --target DIR/target.pt --out DIR [--minutes 15]

Resumable. Pairs (feature of token i, token i + 1), as inference feeds them. The drafter is unrolled over its own
outputs (HASS, arXiv 2408.15766: in pass j a query sees true-feature keys up to j positions back and its own
passes' keys nearer by), so that it is trained for the depths at which it drafts. Both guidance rows run, and the
loss is taken on the guided distributions: a KL / total-variation hybrid (LK losses, arXiv 2602.23881), because
coupled acceptance rises as total variation falls. Prints held-out acceptance per depth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adt_core.drafters.eagle import EagleDrafter
from adt_core.models.decoder import Decoder, rope_tables
from adt_core.sampling import guide, keyed_gumbel

from .common import Run, muon_and_adam
from .sequences import Batch, Sequences, initialise, run_decoder
from .target import HELD_OUT, open_sequences, trained_decoder

PASSES = 4
DECAY = 0.8


def make_drafter(decoder: Decoder) -> EagleDrafter:
    config = type(decoder.config)(**{**vars(decoder.config), "num_layers": 1})
    drafter = EagleDrafter(config, input_norm=True)
    initialise(drafter, torch.Generator().manual_seed(3), 1)
    drafter.embedding.data.copy_(decoder.embedding)
    drafter.embedding.requires_grad_(False)
    drafter.fc.data[decoder.config.hidden_size :] += torch.eye(decoder.config.hidden_size)  # starts by passing the feature on
    return drafter


def unroll(drafter: EagleDrafter, ids: Tensor, features: Tensor, passes: int) -> list[Tensor]:
    """Outputs of ``passes`` passes, each [R, n, h]; output j at i extrapolates the feature of token i + 1.

    ids [R, n]: token i + 1 at position i. features [R, n, h]: the target's, of token i.
    """
    layer, c = drafter.layer, drafter.config
    n, heads = ids.shape[1], c.num_heads
    embedded = F.embedding(ids, drafter.embedding)
    cos, sin = (table[:n] for table in rope_tables(c, drafter.embedding.detach()))
    distance = torch.arange(n)[:, None] - torch.arange(n)
    keys, values, outputs, feature = [], [], [], features
    for j in range(passes):
        x = torch.cat([embedded, feature], -1) @ drafter.fc + drafter.fc_bias
        qkv = F.rms_norm(x, (c.hidden_size,), layer.input_norm, c.rms_norm_eps) @ layer.qkv
        qkv = qkv.unflatten(-1, (3 * heads, c.head_dim)).transpose(1, 2)
        qk = F.layer_norm(qkv[:, : 2 * heads], (c.head_dim,), eps=1e-5)
        qk = qk * layer.qk_norm_weight[:, None] + layer.qk_norm_bias[:, None]
        qk = qk * cos + qk.roll(c.head_dim // 2, -1) * sin
        keys.append(qk[:, heads:])
        values.append(qkv[:, 2 * heads :])
        sight = torch.cat([distance >= j] + [distance == j - m for m in range(1, j + 1)], 1)
        y = F.scaled_dot_product_attention(qk[:, :heads], torch.cat(keys, 2), torch.cat(values, 2), sight)
        x = x + y.transpose(1, 2).flatten(2) @ layer.out
        gate, up = (F.rms_norm(x, (c.hidden_size,), layer.mlp_norm, c.rms_norm_eps) @ layer.gate_up).chunk(2, -1)
        out = x + (F.silu(gate) * up) @ layer.down
        outputs.append(out)
        feature = torch.cat([features[:, :1], out[:, :-1].detach()], 1)  # element i now stands on the drafter's own extrapolation
    return outputs


def both_rows(sequences: Sequences, indices: np.ndarray, rng: np.random.Generator) -> tuple[Batch, Batch]:
    return sequences.batch(indices, rng, conditional=True), sequences.batch(indices, rng, conditional=False)


def guided(decoder: Decoder, conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    return decoder.logits(guide(torch.cat([conditional, unconditional]), scale))


def passes_and_targets(decoder: Decoder, drafter: EagleDrafter, batches: tuple[Batch, Batch], passes: int, scale: float):
    """Yields per pass: guided drafter logits, guided target logits, drafter features, target features, codes.

    Row k of pass j predicts image token k + 1 after j own features; the first j + 1 tokens have no such state.
    """
    runs = []
    for batch in batches:
        with torch.no_grad():
            features = run_decoder(decoder, batch.ids[:, :-1])
        runs.append((batch, features, unroll(drafter, batch.ids[:, 1:], features, passes)))
    length = batches[0].codes.shape[1] - 1
    for j in range(passes):
        # output at starts + k extrapolates the feature at starts + k + 1, which decides code k + 1
        outs = [batch.at_image(outputs[j], 0, length) for batch, _, outputs in runs]
        true = [batch.at_image(features, 1, length) for batch, features, _ in runs]
        with torch.no_grad():
            p = guided(decoder, *true, scale)
        yield guided(decoder, *outs, scale), p, torch.cat(outs), torch.cat(true), batches[0].codes[:, 1:]


def distribution_loss(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    """lambda * KL(p, q) + (1 - lambda) * TV(p, q), lambda = exp(-3 * overlap) per position."""
    log_q, log_p = q_logits.log_softmax(-1), p_logits.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    overlap = torch.minimum(p, q).sum(-1)
    weight = (-3 * overlap.detach()).exp()
    return (weight * (p * (log_p - log_q)).sum(-1) + (1 - weight) * (1 - overlap)).mean()


@torch.no_grad()
def evaluate(decoder: Decoder, drafter: EagleDrafter, sequences: Sequences, count: int = 16) -> list[str]:
    """Per depth: is the coupled target token among the drafter's first 1 / 2 / 4 coupled children? (teacher-forced, guidance 3)"""
    indices = np.arange(len(sequences.codes) - count, len(sequences.codes))
    noise = torch.from_numpy(keyed_gumbel(0, 0, range(sequences.codes.shape[1] - 1), decoder.head.shape[1])).float()
    lines = []
    for j, (q, p, *_rest) in enumerate(passes_and_targets(decoder, drafter, both_rows(sequences, indices, np.random.default_rng(0)), PASSES, 3.0)):
        y = (p + noise).argmax(-1, keepdim=True)
        hits = (q + noise).topk(4, -1).indices == y
        lines.append(f"depth {j + 1}: " + " / ".join(f"{hits[..., :k].any(-1).float().mean().item():.3f}" for k in (1, 2, 4)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--batch", type=int, default=6)
    args = parser.parse_args()
    sequences = open_sequences(args.tokens)
    decoder = trained_decoder(args.target, sequences.vocabulary).requires_grad_(False)
    drafter = make_drafter(decoder)
    run = Run(args.out / "drafter.pt", drafter, muon_and_adam(drafter, muon_lr=0.01, adam_lr=2e-3), args.minutes, decay=0.98)
    order = np.random.default_rng(13).permutation(len(sequences.codes) - HELD_OUT)
    while run.fraction < 1:
        rng = np.random.default_rng([14, run.step])
        indices = order[run.step * args.batch % (len(order) - args.batch) :][: args.batch]
        passes = 1 if run.fraction < 0.15 else PASSES
        scale = 3.0 if rng.random() < 0.7 else float(rng.uniform(1, 6))
        loss, weight = torch.zeros(()), 0.0
        for j, (q, p, out, true, _) in enumerate(passes_and_targets(decoder, drafter, both_rows(sequences, indices, rng), passes, scale)):
            loss = loss + DECAY**j * (distribution_loss(q, p) + 0.1 * F.smooth_l1_loss(out, true))
            weight += DECAY**j
        run.advance(loss / weight)
        if run.due():
            run.save()
            shipped = make_drafter(decoder)
            shipped.load_state_dict(run.average.shadow)
            print("held out, first 1 / 2 / 4: " + "; ".join(evaluate(decoder, shipped, sequences)), flush=True)


if __name__ == "__main__":
    main()
