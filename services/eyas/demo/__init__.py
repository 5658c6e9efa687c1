"""The demo: real questions, a real model and a real vLLM, from nothing to a measured drafter on one machine."""
