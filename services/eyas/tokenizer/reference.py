"""A model's log-probabilities by transformers: what a server's are compared with."""

from typing import Any

from eyas.errors import InputError


def prompt_logprobs(model: str, prompts: list[list[int]], trust_remote_code: bool) -> list[list[tuple[float, int]]]:
    """For each prompt, and each of its ids but the first: its log-probability in nats, and the most probable id.

    Computed in float32 on the CPU, one prompt after the other. Raises InputError when torch or the model is missing.
    """
    try:
        import torch  # noqa: PLC0415 - only this check needs it, and it takes seconds to import
    except ImportError as error:
        raise InputError("torch is not installed: `pip install 'eyas[train]'`") from error
    from transformers import AutoModelForCausalLM  # noqa: PLC0415
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"transformers cannot load {model}: {' '.join(str(error).split())[:200]}") from error
    results = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor(prompt)
            scores = loaded(ids[None]).logits[0, :-1].float().log_softmax(-1)
            own = scores.gather(1, ids[1:, None])[:, 0]
            results.append(list(zip(own.tolist(), scores.argmax(-1).tolist(), strict=True)))
    return results
