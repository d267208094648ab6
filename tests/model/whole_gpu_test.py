"""Tiny whole models (LLaVA, LLaVA-NeXT, LLaVA-OneVision, InternVL, Ovis2, Qianfan-OCR, Gemma 3, PaliGemma, Idefics3, SmolVLM, DeepSeek-VL) on a GPU, on texts
with images inside: in float32 their logits, gradients and tokens are those of the CPU but for rounding, in bf16 they are as near to them as a CPU's.

usage: whole_gpu_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from with_transformers import engine, folder as root, run
from whole_models import MODELS, make_models, write_batch

import torch
from safetensors.torch import load_file

BATCH = root / "batch.safetensors"


def setUpModule():
    make_models()


def traced(name, device, dtype):
    out = root / f"{device}-{dtype}.safetensors"
    run(engine, "trace", root / f"{name}.model", "--batch", BATCH, "--out", out, "--grads", "--device", device, "--dtype", dtype)
    return {key: tensor.float() for key, tensor in load_file(out).items() if tensor.is_floating_point()}


def generated(name, device):
    return json.loads(run(engine, "generate", root / f"{name}.model", "--batch", BATCH, "--limit", "12", "--ignore-eos", "--json", "--device", device, "--dtype", "fp32"))


class OnGpu(unittest.TestCase):
    def test_numbers_are_those_of_a_cpu(self):
        for name in MODELS:
            with self.subTest(name):
                write_batch(name, BATCH)
                right, rounded_on_cpu = traced(name, "cpu", "fp32"), traced(name, "cpu", "bf16")
                exact, rounded = traced(name, "cuda", "fp32"), traced(name, "cuda", "bf16")
                self.assertEqual(exact.keys(), right.keys())
                floor = 0.01 * max(tensor.abs().max().item() for key, tensor in right.items() if key.startswith("grad."))
                for key, tensor in right.items():
                    scale = max(tensor.abs().max().item(), floor if key.startswith("grad.") else 0)
                    self.assertLessEqual((exact[key] - tensor).abs().max().item(), 1e-4 * scale, key)
                    if tensor.abs().max() >= floor and tensor.numel() > 1:
                        cosine, of_cpu = (torch.nn.functional.cosine_similarity(all_of[key].flatten().double(), tensor.flatten().double(), 0).item()
                                          for all_of in (rounded, rounded_on_cpu))
                        self.assertGreaterEqual(cosine, min(0.99, 1 - 2 * (1 - of_cpu)), f"{key} in bf16")
                self.assertAlmostEqual(rounded["loss"].item() / right["loss"].item(), 1, delta=0.02)

    def test_tokens_are_those_of_a_cpu(self):
        for name in MODELS:
            with self.subTest(name):
                write_batch(name, BATCH)
                self.assertEqual(*([answer["ids"] for answer in generated(name, device)["samples"]] for device in ("cuda", "cpu")))


if __name__ == "__main__":
    unittest.main()
