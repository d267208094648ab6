"""A tiny model that was trained to think before it answers, and before it calls a tool, by Qwen3's template."""
import json
from pathlib import Path

from byte_tokenizer import tokenizer
from talking_model import train_on

TEMPLATE = Path(__file__).parents[1] / "jinja" / "chat_templates" / "qwen3.jinja"
SYSTEM = {"role": "system", "content": "Help."}
ASKED, THOUGHT, SAID = "Two and two?", "2 + 2,\nso 4.", "Four <em>it</em> is."
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}},
                                                                       "required": ["x"], "additionalProperties": False}}}
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"x": 2}}}
TOOL_THOUGHT, HIDDEN = "I add.", "4"


def with_thoughts(thought, said):
    return f"<think>\n{thought}\n</think>\n\n{said}"


def make_model():
    """The folder "run", whose template called "open" begins the thoughts in the prompt, and whose other one, "tool_use", is that of tools."""
    made = json.loads(tokenizer(261, ["<think>", "</think>"]))
    for token in made["added_tokens"][-2:]:
        token["special"] = False  # as Qwen3 has them
    for part in ("pre_tokenizer", "decoder"):
        made[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}  # which tokenizers wants
    default = TEMPLATE.read_text()
    end = "    {%- endif %}\n{%- endif %}"
    assert default.endswith(end)
    opens = default.removesuffix(end) + "    {%- else %}\n        {{- '<think>\\n' }}\n" + end
    with_tools = default.replace("# Tools", "# Functions")
    templates = [{"name": name, "template": text} for name, text in (("default", default), ("open", opens), ("tool_use", with_tools))]
    asked = [SYSTEM, {"role": "user", "content": ASKED}]
    calls = [*asked, {"role": "assistant", "content": with_thoughts(TOOL_THOUGHT, ""), "tool_calls": [CALL]}]
    talks = [{"messages": [*asked, {"role": "assistant", "content": with_thoughts(THOUGHT, SAID)}]}, {"messages": calls, "tools": [TOOL]}]
    train_on(talks, json.dumps(made), templates, 264)
