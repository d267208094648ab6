"""Mixtures of experts in few bits beside compressed-tensors and transformers: which matrices are packed, their codes, logits of the numbers
that they stand for, tokens, ways through import and export, patterns of what stays as it is, and LoRA over a quantized mixture.

usage: experts_test.py FVLM_ENGINE; exit 77 where the oracle's wheels are missing."""
import json
import re
import shutil
import sys
import unittest

from byte_tokenizer import tokenizer
from with_transformers import draw, engine, folder as root, run

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Lfm2MoeConfig, Qwen3MoeConfig

try:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

BITS = {"int8": 8, "int4": 4}
SIZES = {"vocab_size": 259, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 258, "num_experts": 6,
         "num_experts_per_tok": 2, "moe_intermediate_size": 32, "experts_implementation": "eager"}
MODELS = {"qwen3_moe": Qwen3MoeConfig(**SIZES, head_dim=16, mlp_only_layers=[], norm_topk_prob=True),
          "lfm2_moe": Lfm2MoeConfig(**SIZES, layer_types=["conv", "full_attention"], num_dense_layers=1)}
IS_EXPERT = re.compile(r"\.experts\.\d+\.(gate_proj|up_proj|down_proj|w[123])\.weight")
TEXT = list(range(30, 70))  # of which some experts get many rows, and others few


def setUpModule():
    for name, config in MODELS.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config).eval()
        draw(model)
        model.save_pretrained(root / name)
        (root / name / "tokenizer.json").write_text(tokenizer())
        run(engine, "import", "--model", root / name, "--out", root / f"{name}.model")
        for scheme in BITS:
            run(engine, "export", root / f"{name}.model", "--quantize", scheme, "--out", root / f"{name}.{scheme}")
            run(engine, "export", root / f"{name}.{scheme}", "--huggingface", "--out", root / f"{name}.{scheme}.hf")
    save_file({"input_ids": torch.tensor(TEXT), "loss_mask": torch.ones(len(TEXT), dtype=torch.uint8), "frame_counts": torch.zeros(1, dtype=torch.long),
               "text_lengths": torch.tensor([len(TEXT)]), "frames": torch.zeros(0, 3, 1, 1)}, root / "batch.safetensors")


def each():
    return ((name, scheme) for name in MODELS for scheme in BITS)


def traced(model):
    run(engine, "trace", root / model, "--batch", root / "batch.safetensors", "--out", root / "trace.safetensors")
    return load_file(root / "trace.safetensors")["logits"]


def relative(one, other):
    return ((one - other).norm() / other.norm()).item()


def with_numbers(tensors, bits):
    """The tensors with the numbers that codes stand for in place of the codes, which have to be laid as compressed-tensors lays them."""
    out = {name: tensor for name, tensor in tensors.items() if not name.endswith(("_packed", "_scale", "_shape"))}
    for name in [name.removesuffix("_packed") for name in tensors if name.endswith("_packed")]:
        shape, scale = torch.Size(tensors[name + "_shape"].tolist()), tensors[name + "_scale"]
        codes = unpack_from_int32(tensors[name + "_packed"], bits, shape)
        assert torch.equal(pack_to_int32(codes, bits), tensors[name + "_packed"]), name
        out[name] = codes * scale.repeat_interleave(shape[1] // scale.shape[1], 1)
    return out


def in_transformers(name, scheme):
    """transformers' model of the numbers: it reads no codes of experts."""
    numbers = root / "numbers"
    shutil.rmtree(numbers, ignore_errors=True)
    shutil.copytree(root / name, numbers)
    save_file(with_numbers(load_file(root / f"{name}.{scheme}.hf" / "model.safetensors"), BITS[scheme]), numbers / "model.safetensors",
              metadata={"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(numbers, experts_implementation="eager").eval()


class Experts(unittest.TestCase):
    def test_matrices_of_experts_are_packed_and_routers_are_not(self):
        for name, scheme in each():
            with self.subTest((name, scheme)):
                plain, packed = (load_file(root / folder / "decoder" / "model.safetensors") for folder in (f"{name}.model", f"{name}.{scheme}"))
                matrices = {key for key in plain if IS_EXPERT.search(key)}
                self.assertIn(len(matrices), (36, 18))  # of two layers, and of one
                self.assertEqual(matrices, {key.removesuffix("_packed") for key in packed if ".experts." in key and key.endswith("_packed")})
                routers = [key for key in plain if key.endswith(("mlp.gate.weight", "feed_forward.gate.weight"))]
                self.assertEqual(len(routers), len(matrices) // 18)
                for key in routers:
                    self.assertTrue(torch.equal(plain[key], packed[key]), key)
                numbers = with_numbers(packed, BITS[scheme])
                for key in matrices:
                    self.assertLess(relative(numbers[key], plain[key]), {"int8": 0.01, "int4": 0.12}[scheme], key)

    def test_config_names_all_experts_of_a_layer_at_once(self):
        for name, scheme in each():
            folder = root / f"{name}.{scheme}.hf"
            config = json.loads((folder / "config.json").read_text())["quantization_config"]
            targets = [re.compile(target.removeprefix("re:")) for group in config["config_groups"].values() for target in group["targets"]]
            of_experts = [target for target in targets if "experts" in target.pattern]
            tensors = load_file(folder / "model.safetensors")
            modules = {key.removesuffix(".weight_packed") for key in tensors if key.endswith(".weight_packed")}
            self.assertEqual(len(of_experts), len([module for module in modules if ".experts.0." in module]))
            for key in tensors:
                module = key.rpartition(".")[0]
                self.assertEqual(any(target.match(module) for target in targets), module in modules, key)

    def test_logits_are_those_of_the_numbers(self):
        for name, scheme in each():
            with self.subTest((name, scheme)), torch.no_grad():
                right = in_transformers(name, scheme)(torch.tensor([TEXT])).logits[0]
                mine = traced(f"{name}.{scheme}")
                self.assertLess(relative(mine, right), 2e-5)
                self.assertGreater(relative(mine, traced(f"{name}.model")), 1e-3, "nothing was quantized")

    def test_tokens_are_those_of_the_numbers(self):
        prompt = [257, *b"user\nWhat is it?", 258, 10, 257, *b"assistant\n"]
        for name, scheme in each():
            answer = json.loads(run(engine, "generate", root / f"{name}.{scheme}", "--prompt", "What is it?", "--system", "", "--max-tokens", 10,
                                    "--ignore-eos", "--json"))
            theirs = in_transformers(name, scheme).generate(torch.tensor([prompt]), max_new_tokens=10, min_new_tokens=10, do_sample=False,
                                                            pad_token_id=0, eos_token_id=[])
            self.assertEqual(answer["prompt"], len(prompt))
            self.assertEqual(answer["ids"], theirs[0, len(prompt):].tolist(), (name, scheme))

    def test_folders_come_back_with_equal_bytes(self):
        for name, scheme in each():
            run(engine, "import", "--model", root / f"{name}.{scheme}.hf", "--out", root / f"{name}.{scheme}.again")
            before, after = (load_file(root / folder / "decoder" / "model.safetensors") for folder in (f"{name}.{scheme}", f"{name}.{scheme}.again"))
            self.assertEqual(set(before), set(after))
            self.assertTrue(all(torch.equal(before[key], after[key]) for key in before))
            self.assertTrue(torch.equal(traced(f"{name}.{scheme}.again"), traced(f"{name}.{scheme}")))

    def test_what_stays_as_it_is(self):
        run(engine, "export", root / "qwen3_moe.model", "--quantize", "int4", "--skip", "*.experts.*", "--out", root / "skipped")
        run(engine, "export", root / "qwen3_moe.model", "--quantize", "int8", "--activations", "int8", "--out", root / "w8a8")
        plain = load_file(root / "qwen3_moe.model" / "decoder" / "model.safetensors")
        for folder in ("skipped", "w8a8"):
            packed = load_file(root / folder / "decoder" / "model.safetensors")
            self.assertTrue(any(key.endswith("q_proj.weight_packed") for key in packed), folder)
            self.assertTrue(all(torch.equal(packed[key], plain[key]) for key in plain if ".experts." in key), folder)
        said = run(engine, "export", root / "qwen3_moe.model", "--quantize", "int4", "--skip", "*.experts.3.*", "--out", root / "refused", code=2)
        self.assertIn("read as one matrix", said)

    def test_adapters_train_over_codes_as_over_their_numbers(self):
        (root / "train.jsonl").write_text("".join(
            json.dumps({"messages": [{"role": "user", "content": f"What is {a} and {a}?"}, {"role": "assistant", "content": f"It is {a + a}."}]}) + "\n"
            for a in range(24)))
        in_transformers("qwen3_moe", "int4")
        (root / "numbers" / "tokenizer.json").write_text(tokenizer())
        run(engine, "import", "--model", root / "numbers", "--out", root / "numbers.model")
        losses = {}
        for base in ("qwen3_moe.int4", "numbers.model"):
            recipe = root / f"{base}.lua"
            run(engine, "recipe", "new", recipe, "--model", root / base, "--data", root / "train.jsonl", "--lora", "4")
            run(engine, "train", recipe, "--set", "precision=fp32", "--run-dir", root / f"{base}.run", "--device", "cpu")
            lines = [json.loads(line) for line in (root / f"{base}.run" / "metrics.jsonl").read_text().splitlines()]
            losses[base] = torch.tensor([line["loss"] for line in lines if line["kind"] == "step"])
        codes, numbers = losses.values()
        self.assertGreater(len(codes), 1)
        torch.testing.assert_close(codes, numbers, rtol=1e-4, atol=1e-5)
        self.assertLess(codes[-1], codes[0])


if __name__ == "__main__":
    unittest.main()
