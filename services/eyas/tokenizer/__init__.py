"""The tokenizer service: messages to ids by the model's chat template, ids to reasoning, content and tool calls."""
