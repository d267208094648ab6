"""Language models without an encoder: folders of transformers are imported, compute its logits and every gradient, generate its tokens,
train on conversations from the recipe that `recipe new` writes, with all weights or adapters, and go back; pictures are refused.

usage: text_only_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import os
import unittest

import forked_program
from byte_tokenizer import tokenizer
from with_transformers import assert_near, draw, engine, folder, load_file, run, save_file, torch, with_float64

import torch.nn.functional as F
from PIL import Image
from transformers import AutoModelForCausalLM, Gemma2Config, GraniteConfig, LlamaConfig, Qwen3Config

SIZES = {"vocab_size": 259, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 258}
# Heads that divide or bound logits are those of language models alone.
MODELS = {"llama": LlamaConfig(**SIZES, tie_word_embeddings=False), "qwen3": Qwen3Config(**SIZES, head_dim=12, tie_word_embeddings=True),
          "gemma2": Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=3.0, attn_logit_softcapping=2.0),
          "granite": GraniteConfig(**SIZES, logits_scaling=4.0, embedding_multiplier=3.0, attention_multiplier=0.3)}
TEXTS = [[5, 9, 11, 3, 7, 8, 1, 30], [40, 41, 42, 43], [17, 22, 4, 90, 91]]
MASKS = [torch.arange(len(text)) % 3 > 0 for text in TEXTS]
TOKENS = 12
models = {}


def setUpModule():
    for name, config in MODELS.items():
        torch.manual_seed(1)
        models[name] = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        draw(models[name])
        models[name].save_pretrained(folder / name)
        (folder / name / "tokenizer.json").write_text(tokenizer())
        run(engine, "import", "--model", folder / name, "--out", folder / f"{name}.model")
    save_file({"input_ids": torch.tensor(sum(TEXTS, [])), "loss_mask": torch.cat(MASKS).to(torch.uint8), "frame_counts": torch.zeros(3, dtype=torch.long),
               "text_lengths": torch.tensor([len(text) for text in TEXTS]), "frames": torch.zeros(0, 3, 1, 1)}, folder / "batch.safetensors")
    (folder / "train.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": f"What is {a} and {a}?"}, {"role": "assistant", "content": f"It is {a + a}."}]}) + "\n"
        for a in range(24)))


def expected_of(model):
    model.zero_grad()
    logits = [model(torch.tensor([text])).logits[0] for text in TEXTS]
    loss = torch.cat([F.cross_entropy(row[:-1], torch.tensor(text)[1:], reduction="none")[mask[1:]]
                      for row, text, mask in zip(logits, TEXTS, MASKS)]).mean()
    loss.backward()
    return {f"grad.decoder.{name}": parameter.grad for name, parameter in model.named_parameters()} | {
        "loss": loss.detach(), "logits": torch.cat(logits).detach()}


def traced(model):
    run(engine, "trace", model, "--batch", folder / "batch.safetensors", "--grads", "--out", folder / "trace.safetensors")
    return load_file(folder / "trace.safetensors")


class TextOnly(unittest.TestCase):
    def test_logits_loss_and_every_gradient(self):
        for name, model in models.items():
            with self.subTest(name):
                ours = traced(folder / f"{name}.model")
                self.assertEqual({key for key in ours if key.startswith("grad.")}, {key for key in expected_of(model) if key.startswith("grad.")})
                assert_near(ours, *with_float64(expected_of, model), name)

    def test_the_same_tokens_are_generated(self):
        prompt = "What is it?"
        ids = [257, *b"user\n" + prompt.encode(), 258, 10, 257, *b"assistant\n"]
        for name, model in models.items():
            with self.subTest(name):
                answer = json.loads(run(engine, "generate", folder / name, "--prompt", prompt, "--system", "", "--max-tokens", TOKENS, "--ignore-eos", "--json"))
                theirs = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=[])
                self.assertEqual(answer["prompt"], len(ids))
                self.assertEqual(answer["ids"], theirs[0, len(ids):].tolist())

    def test_folders_come_back_with_equal_bytes(self):
        for name in models:
            with self.subTest(name):
                run(engine, "export", folder / f"{name}.model", "--huggingface", "--out", folder / f"{name}.back")
                before, after = (load_file(folder / each / "model.safetensors") for each in (name, f"{name}.back"))
                self.assertEqual(set(before), set(after))
                self.assertTrue(all(torch.equal(before[key], after[key]) for key in before))
                self.assertEqual(*(json.loads((folder / each / "config.json").read_text()) for each in (name, f"{name}.back")))

    def test_training_on_conversations(self):
        for options in ([], ["--lora", "4"]):
            with self.subTest(options=options):
                recipe = folder / f"train{len(options)}.lua"
                run(engine, "recipe", "new", recipe, "--model", folder / "qwen3.model", "--data", folder / "train.jsonl", "--held-out", "10%", *options)
                words = ("--set", "precision=fp32", "--run-dir", folder / "runs" / recipe.stem, "--device", "cpu")
                planned = json.loads(run(engine, "plan", recipe, "--budget", "--json"))
                self.assertEqual([stage["pack"]["frames"] for stage in planned], [0])
                run(engine, "train", recipe, *words)
                trained = folder / "runs" / recipe.stem
                self.assertLess(traced_loss(recipe, trained), traced_loss(recipe, folder / "qwen3.model"))
                if options:
                    self.check_adapters(trained)
                else:
                    run(engine, "export", trained, "--huggingface", "--out", folder / "trained")
                    again = AutoModelForCausalLM.from_pretrained(folder / "trained", attn_implementation="eager").eval()
                    assert_near(traced(trained), *with_float64(expected_of, again), "trained")

    def check_adapters(self, trained):
        try:
            from peft import PeftModel
        except ImportError:
            self.skipTest("peft is not there")
        run(engine, "lora", "export", trained, "--out", folder / "peft")
        base = AutoModelForCausalLM.from_pretrained(folder / "qwen3", attn_implementation="eager")
        theirs = PeftModel.from_pretrained(base, folder / "peft").eval()
        run(engine, "lora", "merge", trained, "--out", folder / "merged")
        ours = traced(folder / "merged")["logits"]
        right = torch.cat([theirs(torch.tensor([text])).logits[0] for text in TEXTS]).detach()
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)

    def test_pictures_are_refused(self):
        Image.new("RGB", (8, 8)).save(folder / "a.png")
        said = run(engine, "generate", folder / "qwen3.model", "--prompt", "What?", "--image", folder / "a.png", code=2)
        self.assertIn("the model reads text alone, and got pictures", said)
        line = json.dumps({"image": "a.png", "user": "<image>What?", "assistant": "It."}) + "\n"
        (folder / "pictures.jsonl").write_text(line + (folder / "train.jsonl").read_text())
        recipe = folder / "pictures.lua"
        run(engine, "recipe", "new", recipe, "--model", folder / "qwen3.model", "--data", folder / "pictures.jsonl")
        checked = forked_program.run((engine, "data", "check", recipe), env={**os.environ, "FVLM_CACHE": str(folder / "cache")})
        self.assertIn("it has pictures ('jpg'), and the model reads text alone", checked.stdout + checked.stderr)

    def test_what_llama_cpp_reads(self):
        run(engine, "export", folder / "llama.model", "--gguf", "f16", "--out", folder / "gguf")
        self.assertEqual([path.name for path in (folder / "gguf").iterdir()], ["model.gguf"])


def traced_loss(recipe, model):
    out = json.loads(run(engine, "eval", recipe, "--model", model, "--device", "cpu", "--dtype", "fp32", "--json"))
    return next(each["loss"] for each in out["results"] if "loss" in each)


if __name__ == "__main__":
    unittest.main()
