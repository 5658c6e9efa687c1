"""A server that is like vLLM on the wire, with answers that can be foretold and faults on order. Needs no model."""
