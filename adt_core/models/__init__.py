"""Target models: transformer decoder, KV cache, image codecs, model families, and loading of checkpoints."""
