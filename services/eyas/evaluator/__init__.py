"""Measures drafters: serves each in vLLM, asks the held-out prompts, and reads what vLLM counted."""
