"""The tokenizer of tests that make their own models."""
import json


def tokenizer(tokens=259, further=()):
    """A tokenizer.json of bytes, <image> and ChatML, and further special tokens: those named, or as many as there are then."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    special = ["<image>", "<|im_start|>", "<|im_end|>", *further]
    special += [f"<{number}>" for number in range(256 + len(special), tokens)]
    return json.dumps({
        "model": {"type": "BPE", "vocab": {chr(b if b in shown else next(others)): b for b in range(256)}, "merges": []},
        "added_tokens": [{"id": 256 + i, "content": content, "special": True, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False} for i, content in enumerate(special)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}})
