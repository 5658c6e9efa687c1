"""Trains an EAGLE-3 drafter from a run's generations and hidden states, and exports it for vLLM.

Shapes in this package: N positions of packed documents, R rows among them that are trained, K steps, H hidden size,
A attention heads, G key-value heads, D head size, V ids of the model, W ids of the drafter.
"""
