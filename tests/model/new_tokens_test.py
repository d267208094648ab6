"""`import --add-tokens`: tokenizer, config, embedding and output head have the new tokens, as transformers has them after add_tokens and
resize_token_embeddings with the mean of the rows; they are read in texts, and the model goes back to transformers.

usage: new_tokens_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import subprocess
import unittest

from with_transformers import draw, engine, folder as root, load_file, run, torch
from whole_models import FILES, TEXT, make, models

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedTokenizerFast, Qwen3Config

OWN, ROWS = 259, 260  # tokens of the tokenizer, and rows of the decoders
LOCATIONS = [f"<loc_{number}>" for number in range(100)] + ["Größe 7"]
TEXTS = ["Where? <loc_7><loc_99>, and <loc_100>.", "Größe 70", "<|im_end|> is none"]


def setUpModule():
    for name in ("smolvlm", "llava-clip-llama"):  # whose heads are tied, and not
        models[name] = make(name)
    torch.manual_seed(1)
    models["qwen3"] = AutoModelForCausalLM.from_config(Qwen3Config(**TEXT, head_dim=12)).eval()
    draw(models["qwen3"])
    models["qwen3"].save_pretrained(root / "qwen3")
    (root / "qwen3" / "tokenizer.json").write_text(FILES["tokenizer.json"])


def added(name, tokens, out, code=0):
    (root / "tokens.txt").write_text("".join(token + "\r\n" for token in tokens) + "\n")
    return run(engine, "import", "--model", root / name, "--out", root / out, "--add-tokens", root / "tokens.txt", code=code)


def own_tokenizer(path):
    made = json.loads((path / "tokenizer.json").read_text())
    for part in ("pre_tokenizer", "decoder"):
        made[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}  # which tokenizers wants
    (root / "whole.json").write_text(json.dumps(made))
    return PreTrainedTokenizerFast(tokenizer_file=str(root / "whole.json"))


def with_tokens(name, rows, first, count):
    """transformers' model with further rows, of which the new tokens have the mean of the others."""
    model = (AutoModelForCausalLM if name == "qwen3" else AutoModelForImageTextToText).from_pretrained(root / name).eval()
    tables = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    means = [table[:first].double().mean(0).float() for table in tables]
    model.resize_token_embeddings(rows, mean_resizing=False)
    for table, mean in zip((model.get_input_embeddings().weight, model.get_output_embeddings().weight), means):
        table.data[first:first + count] = mean
        table.data[ROWS:] = mean
    return model


class NewTokens(unittest.TestCase):
    def test_models_are_those_of_transformers(self):
        for name in models:
            for tokens, rows in ((LOCATIONS, 384), (LOCATIONS[:1], ROWS)):
                with self.subTest(name, tokens=len(tokens)):
                    out = f"{name}.{len(tokens)}"
                    added(name, tokens, out)
                    run(engine, "export", root / out, "--huggingface", "--out", root / f"{out}.hf")
                    kind = AutoModelForCausalLM if name == "qwen3" else AutoModelForImageTextToText
                    ours, theirs = kind.from_pretrained(root / f"{out}.hf").eval(), with_tokens(name, rows, OWN, len(tokens))
                    self.assertEqual(ours.get_input_embeddings().weight.shape[0], rows)
                    ids = torch.tensor([[5, OWN, 7, OWN + len(tokens) - 1, 9]])
                    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-6, atol=1e-6)
                    decoder = AutoModelForCausalLM.from_pretrained(root / out / "decoder").eval()
                    self.assertEqual(decoder.config.vocab_size, rows)

    def test_tokens_are_those_of_transformers(self):
        added("qwen3", LOCATIONS, "read")
        theirs = own_tokenizer(root / "qwen3")
        self.assertEqual(theirs.add_tokens(LOCATIONS), len(LOCATIONS))
        again = own_tokenizer(root / "read" / "decoder")
        said = subprocess.run([engine, "tokenize", root / "read" / "decoder", "--special"], input="\n".join(TEXTS) + "\n", capture_output=True, text=True, check=True)
        for text, line in zip(TEXTS, said.stdout.splitlines(), strict=True):
            ids = theirs(text, add_special_tokens=False)["input_ids"]
            self.assertEqual(again(text, add_special_tokens=False)["input_ids"], ids)
            self.assertEqual(json.loads(line), ids)
        self.assertIn(OWN + 7, again(TEXTS[0])["input_ids"])

    def test_answers_have_them(self):
        added("qwen3", LOCATIONS, "asked")
        (root / "places.jsonl").write_text('{"user": "Where is it?", "assistant": "At <loc_7><loc_30>."}\n')
        run(engine, "recipe", "new", root / "places.lua", "--model", root / "asked", "--data", root / "places.jsonl")
        run(engine, "train", root / "places.lua", "--run-dir", root / "places", "--set", "stages.sft.epochs=150", "--set", "stages.sft.optimizer.lr=0.01")
        self.assertIn("At <loc_7><loc_30>.", run(engine, "generate", root / "places", "--prompt", "Where is it?", "--max-tokens", 12))
        adapters = [word for setting in ('model.adapters=[{"parts":["decoder"],"rank":4,"targets":"all","modules_to_save":["embed_tokens","lm_head"]}]', "stages.sft.epochs=2")
                    for word in ("--set", setting)]
        run(engine, "train", root / "places.lua", "--run-dir", root / "adapted", *adapters)
        run(engine, "lora", "merge", root / "adapted", "--out", root / "merged")
        before, after = (load_file(root / name / "decoder" / "model.safetensors")["lm_head.weight"] for name in ("asked", "merged"))
        self.assertGreater((before - after)[OWN + 7].abs().max(), 0)

    def test_what_is_wrong_is_said(self):
        for tokens, words, code in ((["<image>"], "the tokenizer has '<image>' already: it is the token 256", 4), (["a"], "has 'a' already", 4),
                                    (["<x>", "<x>"], "'<x>' is there twice", 2), ([" "], "is empty", 2), ([], "the file has no token on a line", 2)):
            with self.subTest(words):
                self.assertIn(words, added("qwen3", tokens, "wrong", code=code))
                self.assertFalse((root / "wrong").exists())


if __name__ == "__main__":
    unittest.main()
