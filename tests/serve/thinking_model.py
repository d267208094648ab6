"""A tiny model that was trained to think before it answers, and before it calls a tool, by Qwen3's template."""
import json
import subprocess
from pathlib import Path

from against_oracle import engine, folder
from byte_tokenizer import tokenizer

import torch
from transformers import Dinov2Config, Dinov2Model, LlamaConfig, LlamaForCausalLM

TEMPLATE = Path(__file__).parents[1] / "jinja" / "chat_templates" / "qwen3.jinja"
SYSTEM = {"role": "system", "content": "Help."}
ASKED, THOUGHT, SAID = "Two and two?", "2 + 2,\nso 4.", "Four <em>it</em> is."
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}},
                                                                       "required": ["x"], "additionalProperties": False}}}
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"x": 2}}}
TOOL_THOUGHT, HIDDEN = "I add.", "4"
RECIPE = """local fvlm = require "fvlm"
return fvlm.recipe {
  name = "thoughts",
  model = fvlm.model { vision = "vision", decoder = "decoder", connector = fvlm.mlp {} },
  fvlm.stage "sft" {
    data = fvlm.mix { { "talk.jsonl" }, max_text_tokens = 1024, max_frames = 1, chat_template = "default" },
    objective = fvlm.next_token { on = "answer" },
    optimizer = fvlm.adamw { lr = 1e-2, weight_decay = 0 },
    schedule = fvlm.cosine { to_share = 0.1 }, samples = 400, batch = 2,
  },
}
"""


def with_thoughts(thought, said):
    return f"<think>\n{thought}\n</think>\n\n{said}"


def make_model():
    """The folder "run", whose template called "open" begins the thoughts in the prompt, and whose other one, "tool_use", is that of tools."""
    torch.manual_seed(1)
    Dinov2Model(Dinov2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)).save_pretrained(folder / "vision")
    LlamaForCausalLM(LlamaConfig(vocab_size=264, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, pad_token_id=None,
                                 bos_token_id=None, eos_token_id=258, max_position_embeddings=2048)).save_pretrained(folder / "decoder")
    made = json.loads(tokenizer(261, ["<think>", "</think>"]))
    for token in made["added_tokens"][-2:]:
        token["special"] = False  # as Qwen3 has them
    for part in ("pre_tokenizer", "decoder"):
        made[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}  # which tokenizers wants
    (folder / "decoder" / "tokenizer.json").write_text(json.dumps(made))
    default = TEMPLATE.read_text()
    end = "    {%- endif %}\n{%- endif %}"
    assert default.endswith(end)
    opens = default.removesuffix(end) + "    {%- else %}\n        {{- '<think>\\n' }}\n" + end
    with_tools = default.replace("# Tools", "# Functions")
    templates = [{"name": name, "template": text} for name, text in (("default", default), ("open", opens), ("tool_use", with_tools))]
    (folder / "decoder" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": templates}))
    asked = [SYSTEM, {"role": "user", "content": ASKED}]
    calls = [*asked, {"role": "assistant", "content": with_thoughts(TOOL_THOUGHT, ""), "tool_calls": [CALL]}]
    talks = [{"messages": [*asked, {"role": "assistant", "content": with_thoughts(THOUGHT, SAID)}]}, {"messages": calls, "tools": [TOOL]}]
    (folder / "talk.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    (folder / "thoughts.lua").write_text(RECIPE)
    trained = subprocess.run([engine, "train", "thoughts.lua", "--run-dir", "run"], cwd=folder, capture_output=True, text=True)
    assert trained.returncode == 0, trained.stderr
