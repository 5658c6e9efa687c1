"""vLLM, from outside and from inside: client, metrics, launching, and the connector that runs in it."""
