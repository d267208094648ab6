"""A tiny model that was trained on a few conversations, to be served."""
import json

import forked_program
from against_oracle import engine, folder

import torch
from transformers import Dinov2Config, Dinov2Model, LlamaConfig, LlamaForCausalLM

RECIPE = """local fvlm = require "fvlm"
return fvlm.recipe {
  name = "talk",
  model = fvlm.model { vision = "vision", decoder = "decoder", connector = fvlm.mlp {} },
  fvlm.stage "sft" {
    data = fvlm.mix { { "talk.jsonl" }, max_text_tokens = 1024, max_frames = 1, chat_template = "default" },
    objective = fvlm.next_token { on = "answer" },
    optimizer = fvlm.adamw { lr = 1e-2, weight_decay = 0 },
    schedule = fvlm.cosine { to_share = 0.1 }, samples = 400, batch = 2,
  },
}
"""


def train_on(talks, words, chat_template, vocabulary=260):
    """The folder "run". `words`: tokenizer.json; `chat_template`: of tokenizer_config.json."""
    torch.manual_seed(1)
    Dinov2Model(Dinov2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)).save_pretrained(folder / "vision")
    LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, pad_token_id=None,
                                 bos_token_id=None, eos_token_id=258, max_position_embeddings=2048)).save_pretrained(folder / "decoder")
    (folder / "decoder" / "tokenizer.json").write_text(words)
    (folder / "decoder" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": chat_template}))
    (folder / "talk.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    (folder / "talk.lua").write_text(RECIPE)
    trained = forked_program.run([engine, "train", "talk.lua", "--run-dir", "run"], cwd=folder)
    assert trained.returncode == 0, trained.stderr
