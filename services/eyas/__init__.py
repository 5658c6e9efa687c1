"""Turns questions into an EAGLE-3 drafter for the model that a vLLM server serves."""
