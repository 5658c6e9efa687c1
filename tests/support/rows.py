"""Rows with little in them."""

from datetime import UTC, datetime


def sample(position, turns=1):
    messages = [{"role": "system", "content": "be brief"}]
    messages += [{"role": "user", "content": f"{position}.{turn}"} for turn in range(turns)]
    return {
        "sample_id": f"id{position}",
        "position": position,
        "messages": messages,
        "source": "s",
        "split": "train",
        "turns": turns,
    }


def generation(position, turn=0, prompt_ids=(1, 2), ids=(3, 4), content="answer"):
    return {
        "sample_id": f"id{position}",
        "turn": turn,
        "position": position,
        "split": "train",
        "source": "s",
        "messages": [],
        "prompt_ids": prompt_ids,
        "ids": ids,
        "finish_reason": "stop",
        "stop_reason": "",
        "reasoning": "",
        "content": content,
        "tool_calls": "",
        "attempts": 1,
        "interruptions": [],
        "lost_tokens": 0,
        "endpoint": "http://a",
        "model": "m",
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "finished_at": datetime(2026, 1, 1, tzinfo=UTC),
        "first_token_seconds": 0.1,
        "seconds": 1.0,
    }
