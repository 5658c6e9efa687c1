"""Hidden states by transformers, for models that vLLM does not serve: slow, but the same objects."""
