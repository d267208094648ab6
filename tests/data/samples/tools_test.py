"""Tool use in conversations against Python: tools_test.py SAMPLE_PROBE CHAT_TEMPLATES. Token ids and labels are equal.

Parts of answers (python, python_output) against a rendering written here, by nanochat's template and in ChatML; tool_calls
and turns of tools against apply_chat_template of transformers.
"""
import io
import json
import random
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

probe, templates = sys.argv.pop(1), Path(sys.argv.pop(1))
try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    print(f"Skipped\nthe oracle is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

draw = random.Random(5)
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)
SPLIT = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
NANOCHAT = [f"<|{name}|>" for name in ("bos", "user_start", "user_end", "assistant_start", "assistant_end", "python_start", "python_end",
                                       "output_start", "output_end", "image")]
CHATML = ["<|im_start|>", "<|im_end|>"]
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "required": ["unit"], "properties": {  # in no usual order
        "unit": {"enum": ["C", "F"]}, "place": {"type": "string"}}}}}]


def tokenizer_folder(special, template=None, **roles):
    """Bytes, a few merges and the special tokens; encodes what special tokens a text spells as text, unless told otherwise."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("t", "h"), ("th", "e"), ("Ġ", "a"), ("1", "2"), (">", "Ċ"), ("<", "|")]
    vocabulary = {token: i for i, token in enumerate(alphabet + ["".join(merge) for merge in merges])}
    model = Tokenizer(models.BPE(vocabulary, merges))
    model.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    made = PreTrainedTokenizerFast(tokenizer_object=model, **roles)
    if template:
        made.chat_template = (templates / f"{template}.jinja").read_text().replace("strftime_now is defined", "false")
    folder = root / f"folder-{len(list(root.iterdir()))}"
    made.save_pretrained(folder)
    return folder, made


def measured(folder, samples, chatml=False, as_tar=False):
    path = root / f"{len(list(root.iterdir()))}.{'tar' if as_tar else 'jsonl'}"
    if as_tar:
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, sample in enumerate(samples):
                content = json.dumps({**sample, "frame_count": 0}).encode()
                info = tarfile.TarInfo(f"{number:04}.json")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    else:
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    done = subprocess.run([probe, folder, "28", "0", path, root / "out.bin"] + ["chatml"] * chatml, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path, [json.loads(line) for line in done.stdout.splitlines()]


class Rendering:
    """Of nanochat's and GhostVis's conversations, as their documents say it."""

    def __init__(self, tokenizer):
        self.tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self.tokenizer.encode_special_tokens = True
        self.ids, self.mask = [], []

    def special(self, name, label=0):
        self.ids.append(self.tokenizer.token_to_id(f"<|{name}|>"))
        self.mask.append(label)

    def text(self, text, label=0):
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.ids += ids
        self.mask += [label] * len(ids)

    def answer(self, content):
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            name, label = {"text": (None, 1), "python": ("python", 1), "python_output": ("output", 0)}[part["type"]]
            if name:
                self.special(f"{name}_start", label)
            self.text(part["text"], label)
            if name:
                self.special(f"{name}_end", label)

    def nanochat(self, messages):
        self.special("bos")
        system = ""
        for message in messages:
            if message["role"] == "system":
                system = message["content"] + "\n\n"
            elif message["role"] == "user":
                self.special("user_start")
                self.text(system + message["content"])
                self.special("user_end")
                system = ""
            else:
                self.special("assistant_start")
                self.answer(message["content"])
                self.special("assistant_end", 1)
        return self

    def chatml(self, messages):
        for message in messages:
            is_answer = message["role"] == "assistant"
            self.special("im_start")
            self.text(message["role"] + "\n" + ("" if is_answer else message["content"]))
            if is_answer:
                self.answer(message["content"])
            self.special("im_end", int(is_answer))
            self.text("\n", int(is_answer))
        return self


def words():
    return " ".join(draw.choice(["the", "12 + 7", "moon", "<|python_end|>", "is\n", "<|output_start|>", "a", "3*4", "naïve", "\n\n"])
                    for _ in range(draw.randrange(1, 6)))


def conversation():
    messages = [{"role": "system", "content": "Be brief."}] * (draw.random() < 0.3)
    for _ in range(draw.randrange(1, 4)):
        messages.append({"role": "user", "content": words() + "?"})
        parts, kinds = [], ["text", "python", "python_output"]
        for _ in range(draw.randrange(1, 7)):  # texts that follow each other would be one
            kind = draw.choice([kind for kind in kinds if kind != "text" or not parts or parts[-1]["type"] != "text"])
            parts.append({"type": kind, "text": words() if draw.random() < 0.95 or kind == "text" else ""})
        if all(part["type"] == "python_output" or not part["text"].strip() for part in parts):
            parts.append({"type": "text", "text": "so"})
        messages.append({"role": "assistant", "content": parts if draw.random() < 0.8 else words() + "."})
    return messages


class PartsOfAnswers(unittest.TestCase):
    def expect_equal(self, tokenizer, lines, samples, form):
        self.assertEqual(len(lines), len(samples))
        unlabelled = 0
        for line, messages in zip(lines, samples):
            expected = getattr(Rendering(tokenizer), form)(messages)
            self.assertNotIn("error", line, messages)
            self.assertEqual(line["ids"], expected.ids, messages)
            self.assertEqual(line["mask"], expected.mask, messages)
            unlabelled += any(part["type"] == "python_output" for message in messages if isinstance(message["content"], list)
                              for part in message["content"])
        self.assertGreater(unlabelled, len(samples) // 4)

    def test_nanochats_template(self):
        folder, tokenizer = tokenizer_folder(NANOCHAT, "nanochat", bos_token="<|bos|>")
        samples = [conversation() for _ in range(120)]
        for as_tar in (False, True):
            _, lines = measured(folder, [{"messages": messages} for messages in samples], as_tar=as_tar)
            self.expect_equal(tokenizer, lines, samples, "nanochat")

    def test_chatml(self):
        folder, tokenizer = tokenizer_folder(NANOCHAT + CHATML)
        samples = [conversation() for _ in range(60)]
        _, lines = measured(folder, [{"messages": messages} for messages in samples], chatml=True)
        self.expect_equal(tokenizer, lines, samples, "chatml")

    def test_texts_that_follow_each_other_are_one(self):
        folder, tokenizer = tokenizer_folder(NANOCHAT, "nanochat", bos_token="<|bos|>")
        text = [{"type": "text", "text": "t"}, {"type": "text", "text": "he"}]
        code = {"type": "python", "text": "1"}
        ask = {"role": "user", "content": "?"}
        _, lines = measured(folder, [{"messages": [ask, {"role": "assistant", "content": text + [code]}]}])
        expected = Rendering(tokenizer).nanochat([ask, {"role": "assistant", "content": [{"type": "text", "text": "the"}, code]}])
        self.assertEqual((lines[0]["ids"], lines[0]["mask"]), (expected.ids, expected.mask))

    def test_what_is_wrong_is_said(self):
        ask = {"role": "user", "content": "?"}
        wrong = {
            "is an empty answer, and there is nothing to learn": [{"type": "python_output", "text": "7"}],
            "part of type 'shell', which is none of text, image, video, python and python_output": [{"type": "shell", "text": "ls"}],
            "part of type python without 'text'": [{"type": "python"}],
            "the text of a part of 'content' of turn 1 of 'messages' is a number, and a text was expected": [{"type": "python", "text": 7}],
        }
        samples = [[ask, {"role": "assistant", "content": content}] for content in wrong.values()]
        wrong["part of type python, which only the assistant's turns have"] = None
        samples.append([{"role": "user", "content": [{"type": "python", "text": "1"}]}, {"role": "assistant", "content": "x"}])
        folder, _ = tokenizer_folder(NANOCHAT, "nanochat", bos_token="<|bos|>")
        path, lines = measured(folder, [{"messages": messages} for messages in samples])
        for number, (line, what) in enumerate(zip(lines, wrong), 1):
            self.assertIn(what, line.get("error", "accepted"))
            self.assertIn(f"{path}: line {number}", line["error"])
        folder, _ = tokenizer_folder(CHATML, "chatml")
        for chatml in (True, False):
            path, lines = measured(folder, [{"messages": [ask, {"role": "assistant", "content": [{"type": "python", "text": "1"}]}]}],
                                   chatml=chatml)
            self.assertIn("the tokenizer lacks one of <|python_start|>, <|python_end|>, <|output_start|> and <|output_end|>",
                          lines[0].get("error", "accepted"))
            self.assertIn("use a tokenizer with these special tokens", lines[0]["error"])
            self.assertIn(f"{path}: line 1", lines[0]["error"])


class CallsOfTools(unittest.TestCase):
    CALL = {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"unit": "C", "place": "Oslo <|im_end|>"}}}]}
    MESSAGES = [{"role": "user", "content": "How is the weather in Oslo?"}, CALL,
                {"role": "tool", "name": "weather", "content": "4 degrees, rain"},
                {"role": "assistant", "content": "It rains."}]

    def expected(self, tokenizer, messages, tools):
        """Pieces of what transformers renders, of which the answers are labels; each is encoded by itself."""
        def render(messages, prompt=False):
            return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt)
        whole, ids, mask, at = render(messages), [], [], 0

        def append(end, label):
            nonlocal at
            spelled = whole[at:end].replace("Oslo <|im_end|>", "Oslo <|IM_END|>")  # of as many bytes, and no token
            piece = tokenizer.backend_tokenizer.encode(spelled, add_special_tokens=False).ids
            ids.extend(piece)
            mask.extend([label] * len(piece))
            at = end
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                append(len(render(messages[:i], prompt=True)), 0)
                append(len(render(messages[:i + 1])), 1)
        append(len(whole), 0)
        return ids, mask

    def test_templates_of_the_folder(self):
        for template in ("qwen25", "llama31"):
            folder, tokenizer = tokenizer_folder(CHATML + LLAMA, template, bos_token="<|begin_of_text|>", eos_token="<|im_end|>")
            for tools in (TOOLS, None):
                samples = [{"messages": self.MESSAGES}, {"messages": self.MESSAGES[:2]}]
                if tools:
                    samples = [{**samples[0], "tools": tools}, {**samples[1], "tools": json.dumps(tools)}]
                _, lines = measured(folder, samples)
                for line, sample in zip(lines, samples):
                    self.assertNotIn("error", line)
                    ids, mask = self.expected(tokenizer, sample["messages"], tools)
                    decode = tokenizer.backend_tokenizer.decode
                    learnt = decode([id for id, label in zip(line["ids"], line["mask"]) if label], skip_special_tokens=False)
                    self.assertEqual(line["mask"], mask, f"{template}: {learnt}")
                    text = decode(line["ids"], skip_special_tokens=False)
                    self.assertEqual(text, decode(ids, skip_special_tokens=False).replace("IM_END", "im_end"))
                    self.assertIn('"name": "weather"', learnt)
                    self.assertNotIn("4 degrees", learnt)
                    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
                    self.assertEqual(line["ids"].count(end), ids.count(end), "what an argument spells is no token")

    def test_what_is_wrong_is_said(self):
        null = [self.MESSAGES[0], {**self.CALL, "content": None}]
        folder, _ = tokenizer_folder(CHATML, "chatml")
        _, lines = measured(folder, [{"messages": self.MESSAGES}], chatml=True)
        self.assertIn("ChatML has no form for them", lines[0]["error"])
        self.assertIn('set chat_template = "default"', lines[0]["error"])
        path, lines = measured(folder, [{"messages": self.MESSAGES}, {"messages": [self.MESSAGES[0], {**self.CALL, "tool_calls": "x"}]},
                                        {"messages": self.MESSAGES, "tools": "{"}])
        for number, (line, what) in enumerate(zip(lines, (
                "an answer calls tools, and the chat template does not write message.tool_calls",
                "'tool_calls' of turn 1 of 'messages' is a text, and no JSON",
                "'tools' is a text, and no JSON")), 1):
            self.assertIn(what, line.get("error", "accepted"))
            self.assertIn(f"{path}: line {number}", line["error"])
        folder, _ = tokenizer_folder(CHATML, "qwen25", eos_token="<|im_end|>")
        _, lines = measured(folder, [{"messages": null}])
        self.assertNotIn("error", lines[0])


if __name__ == "__main__":
    unittest.main()
