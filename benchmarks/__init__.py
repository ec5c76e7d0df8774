"""Benchmarks of speed, losslessness and memory. Most modules are commands, such as ``python -m benchmarks.auto``.

Terms in the benchmarks:

- Target: the image model. Drafter: the network or rule that proposes tokens (drafts) for the target.
- Plain decoding: decoding without drafts. A plain round decodes one token.
- Round: one draft step followed by one forward pass of the target, which verifies the drafts.
- Tau: mean number of tokens per forward pass of the target.
- Jacobi window, or window: a drafter without a network. It guesses the next positions and refines them in every round.
- Bundled model: the small model that is part of this pack.
- Exact, or batch-invariant mode: mode of half precision in which drafting does not change the image.
- LANTERN: relaxed acceptance of drafts. It is faster, but changes the image.
"""
