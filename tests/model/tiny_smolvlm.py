"""A tiny SmolVLM of drawn weights, which transformers makes and the engine imports, and batches for it."""
from byte_tokenizer import tokenizer
from with_transformers import draw, engine, folder, run

import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, LlamaConfig, SmolVLMConfig

VOCABULARY, IMAGE = 260, 256
# Widths whose int4 groups have 64 and 32 columns, and one that no group divides.
VISION = {"hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
TOKENS = [3, *[IMAGE] * 4, 17, 99, 5, 42, 201, 7, 7, 31]
FILES = {"tokenizer.json": tokenizer(), "tokenizer_config.json": '{"image_token": "<image>"}', "chat_template.jinja": "{{ messages }}",
         "preprocessor_config.json": '{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": 28}'}


def make():
    """The model, whose Hugging Face folder is `hf`, and the model directory `plain`; and a frame."""
    torch.manual_seed(1)
    config = SmolVLMConfig(vision_config=VISION, text_config=LlamaConfig(**TEXT), image_token_id=IMAGE, scale_factor=2,
                           tie_word_embeddings=True)
    model = AutoModelForImageTextToText.from_config(config).eval()
    draw(model)
    model.save_pretrained(folder / "hf")
    for file, content in FILES.items():
        (folder / "hf" / file).write_text(content)
    run(engine, "import", "--model", folder / "hf", "--out", folder / "plain")
    return model, torch.randn(1, 3, 28, 28)


def write_batch(path, tokens, frames):
    ids = torch.tensor([-1 if token == IMAGE else token for token in tokens])
    save_file({"frames": frames, "frame_counts": torch.tensor([len(frames)]), "input_ids": ids,
               "text_lengths": torch.tensor([len(tokens)]),
               "loss_mask": torch.tensor([token != IMAGE for token in tokens]).to(torch.uint8)}, path)


def relative(mine, right):
    return ((mine - right).abs().max() / right.abs().max()).item()
