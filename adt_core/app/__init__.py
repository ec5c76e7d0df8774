"""Application layer: the commands of the command line, and the parts that commands and ComfyUI nodes share.

Terms in this package:

- Target: the model that generates the images.
- Drafter: a small network, or a rule such as "jacobi", that proposes tokens. The proposed tokens are called drafts.
- Codes: image tokens, as indices into the codebook of the target's image decoder (codec).
- Round: one draft step followed by one forward pass of the target, which verifies the drafts.
- Plain decoding: decoding without drafts, one token per forward pass ("plain round").
- Tau: mean number of tokens per forward pass of the target.
- Recipe: all settings that determine an image, except its prompt.
- LANTERN: relaxed acceptance of drafts. It is faster, but changes the image.
"""
