"""One decoder with a static KV cache, one file per model family, codecs and loading."""
