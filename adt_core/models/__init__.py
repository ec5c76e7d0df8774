"""Decoder with a static KV cache, model families, codecs, and the loading of checkpoints."""
