"""template_oracle.py chat|snippets|mutated FILE: renders templates with transformers, as a JSON list of cases.

A case has a template, the variables that it sees and what transformers renders: the text and, where the template marks
it, spans of what the assistant says, in bytes; "expected" is null where transformers ends with an error. `chat` renders
each file of chat_templates/ over several conversations, `snippets` many small pieces of the language, `mutated` damaged
copies of chat_templates/."""
import datetime
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FOLDER = pathlib.Path(__file__).parent / "chat_templates"


class FixedNow(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 7, 15, 4, 5)


chat_template_utils.datetime = FixedNow
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Today's weather at a place: 25 °C, \"mild\".",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "City, e.g. Zürich"},
            "days": {"type": ["integer", "number"], "description": "How many"},
            "zones": {"type": "array", "items": {"type": "number"}, "description": "Of time"}},
            "required": ["place"]}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}, "required": []}}}]


def turns(*texts, system=None, parts=False):
    made = [{"role": "system", "content": system}] if system is not None else []
    for i, text in enumerate(texts):
        made.append({"role": "assistant" if i % 2 else "user", "content": text})
    if parts:
        for message in made:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
    return made


CALL = {"type": "function", "id": "abcdefghi",
        "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None]}}}}
TOOL_TALK = turns("Will it rain in Zürich?", system="Use tools.") + [
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "{\"rain\": true}"},
    {"role": "assistant", "content": "Yes, it will."}]
IMAGE_TALK = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    {"role": "user", "content": [{"type": "text", "text": "And these?"}, {"type": "image"}, {"type": "image"}]}]
VIDEO_TALK = [
    {"role": "system", "content": [{"type": "text", "text": "Look closely."}]},
    {"role": "user", "content": [{"type": "text", "text": "Like "}, {"type": "image"}, {"type": "text", "text": "?"}, {"type": "video"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "And this?"}]}]
CONVERSATIONS = [
    turns("Hello"),
    turns("Hello", "Hi!"),
    turns("  Hello \n", "\n Hi! ", "How are you?", "Fine; ça va 😀 <|im_end|>", system="Be brief.  "),
    turns("What?", "<think>\nhmm\n</think>\n\nThis.", "Why?", "<think>because</think>Because.", system=""),
    turns("a", "b", "c", "d", "e", system="/no_think Be kind."),
    turns("Hello", "Hi!", "More", parts=True),
    turns("Look", "I do", system="You see.", parts=True),
    IMAGE_TALK,
    TOOL_TALK,
    TOOL_TALK[:-1],
    [{"role": "assistant", "content": "I begin."}, {"role": "user", "content": "Odd."}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "reasoning_content": "deep\n"}],
    [{"role": "user", "content": [{"type": "text", "text": "12*12?"}]},
     {"role": "assistant", "content": [{"type": "text", "text": "So "}, {"type": "python", "text": "12*12"},
                                       {"type": "python_output", "text": "144"}, {"type": "text", "text": "144."}]}],
    VIDEO_TALK,
    turns("Draw it.") + [{"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
                         {"role": "tool", "content": [{"type": "image"}, {"type": "text", "text": "drawn"}]},
                         {"role": "tool", "content": "twice"}],
    [{"role": "system", "content": [{"type": "image"}]}] + turns("What is it?")]
OPTIONS = [{}, {"add_generation_prompt": True}, {"tools": TOOLS}, {"tools": TOOLS, "add_generation_prompt": True},
           {"add_vision_id": True}, {"enable_thinking": False, "add_generation_prompt": True}, {"date_string": "1 Jan 2020", "tools_in_user_message":
           False, "tools": TOOLS}, {"documents": [{"title": "A", "text": "first"}, {"title": "B", "text": "second"}],
                                    "tools": TOOLS, "controls": {"length": "long"}, "add_generation_prompt": True}]


def in_bytes(text, spans):
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in spans]


def case(name, template, messages, options):
    options = dict(options)
    tools, documents = options.pop("tools", None), options.pop("documents", None)
    prompt = options.pop("add_generation_prompt", False)
    variables = {"bos_token": "<s>", "eos_token": "</s>", **options, "tools": tools, "documents": documents,
                 "add_generation_prompt": prompt, "messages": chat_template_utils._alias_reasoning_fields(messages)}
    made = {"name": name, "template": template, "variables": variables, "expected": None, "generations": [], "error": ""}
    try:
        made["expected"] = TOKENIZER.apply_chat_template(
            messages, chat_template=template, tools=tools, documents=documents, add_generation_prompt=prompt,
            tokenize=False, **options)
        if "generation %}" in template or "generation -%}" in template:
            texts, spans = chat_template_utils.render_jinja_template(
                [messages], tools, documents, template, True, False, prompt, bos_token="<s>", eos_token="</s>", **options)
            made["generations"] = in_bytes(texts[0], spans[0])
    except Exception as error:
        made["error"] = f"{type(error).__name__}: {error}"
    return made


def chat():
    for path in sorted(FOLDER.glob("*.jinja")):
        for number, messages in enumerate(CONVERSATIONS):
            for option, options in enumerate(OPTIONS):
                yield case(f"{path.stem}/{number}/{option}", path.read_text(), messages, options)


def snippets():
    for number, line in enumerate((FOLDER.parent / "snippets.txt").read_text().split("\n---\n")):
        yield case(f"snippet {number}", line, CONVERSATIONS[2], {"tools": TOOLS, "limits": [2**63 - 1, -2**63]})


def mutated():
    draw = random.Random(11)
    pieces = ["{%", "%}", "{{", "}}", "{#", "#}", "-", "+", "'", '"', "(", ")", "[", "]", "|", ".", "not ", "{% endif %}",
              "{% endfor %}", "{% set x = 1 %}", "{% for i in messages %}", " if ", "else", "\n", "0", "None", "\u00e9", "~",
              " ", "  \n", "\n\n", "\t"]
    for path in sorted(FOLDER.glob("*.jinja")):
        text = path.read_text()
        for number in range(60):
            made, kind = text, draw.random()
            at = draw.randrange(len(made))
            if kind < 0.15:
                made = made[:at]
            elif kind < 0.25: # another sign of white space at a tag
                made = made[:at] + made[at:].replace(*draw.choice([("-%}", "%}"), ("{%-", "{%"), ("{{-", "{{"), ("%}", "+%}"),
                                                                   ("{{", "{{-"), ("{%", "{%+"), ("}}", "-}}")]), 1)
            elif kind < 0.5:
                made = made[:at] + made[at + draw.randrange(1, 12):]
            elif kind < 0.75:
                made = made[:at] + draw.choice(pieces) + made[at:]
            else:
                other = draw.randrange(len(made))
                made = made[:at] + made[other:other + draw.randrange(1, 60)] + made[at:]
            yield case(f"{path.stem} mutated {number}", made, CONVERSATIONS[2] if number % 2 else TOOL_TALK, {"tools": TOOLS})


with open(sys.argv[2], "w") as out:
    json.dump(list({"chat": chat, "snippets": snippets, "mutated": mutated}[sys.argv[1]]()), out)
