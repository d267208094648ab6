"""Gradients of small models of other families on a GPU: in float32 those of the CPU, captured as a CUDA graph or not, and in bf16
close to them. And the server, whose thread for the model captures its passes.

usage: gpu_test.py FVLM_ENGINE; exit 77 where torch is missing."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

engine = sys.argv.pop()
try:
    from safetensors.torch import load_file
    from torch.nn.functional import cosine_similarity
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

scratch = tempfile.TemporaryDirectory()


def gradients(name, device, precision, *options):
    """Of a step that changes no weight, by parameter; and the losses of all steps."""
    path = Path(scratch.name) / "numbers.safetensors"
    command = [engine, "bench", "profile", "--configurations", name, "--text", "25", "--rate", "0", "--numbers", path, "--device", device,
               "--precision", precision, "--repeat", "2", *options]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    numbers = load_file(path)
    losses = numbers.pop("losses")
    return {key: tensor.float() for key, tensor in numbers.items() if key.startswith("grad.")}, losses


class OnGpu(unittest.TestCase):
    def check(self, name, learning):
        right, losses = gradients(name, "cpu", "fp32")
        self.assertEqual({key.split(".")[1] for key in right}, learning)
        floor = 0.01 * max(tensor.abs().max().item() for tensor in right.values())
        for options in ((), ("--eager",)):
            found, found_losses = gradients(name, "cuda", "fp32", *options)
            self.assertEqual(found.keys(), right.keys())
            self.assertLessEqual((found_losses - losses).abs().max().item(), 1e-5 * losses.max().item(), options)
            for key, tensor in right.items():
                off = (found[key] - tensor).abs().max().item() / max(tensor.abs().max().item(), floor)
                self.assertLessEqual(off, 1e-4, f"{key} {options}")
        found, found_losses = gradients(name, "cuda", "bf16")
        self.assertLessEqual((found_losses - losses).abs().max().item(), 0.01 * losses.max().item())
        for key, tensor in right.items():
            if tensor.abs().max() >= floor:
                self.assertGreaterEqual(cosine_similarity(found[key].flatten(), tensor.flatten(), 0).item(), 0.99, key)

    def test_ghostvis(self):
        self.check("tiny-ghostvis:3", {"vision_resampler", "vision_projector"})

    def test_smolvlm(self):
        self.check("tiny-smolvlm:3", {"vision", "modality_projection", "decoder"})

    def test_qwen2_vl(self):
        self.check("tiny-qwen2-vl:3", {"vision", "ln_q", "mlp", "decoder"})

    def test_qwen2_5_vl(self):
        self.check("tiny-qwen2.5-vl:3", {"vision", "ln_q", "mlp", "decoder"})

    def test_latentwire(self):
        self.check("tiny-latentwire:3", {"vision", "shared_pooler", "adapter"})

    def test_the_server_captures_its_passes(self):
        command = [engine, "bench", "serve", "--shape", "tiny", "--device", "cuda", "--clients", "1,4", "--requests", "8", "--prompt", "8",
                   "--answer", "24", "--picture", "40", "--json"]
        found = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual([row["errors"] for row in json.loads(found.stdout)["rows"]], [0, 0])
        self.assertNotIn("warning", found.stderr, "such as of a pass that runs without a graph")


if __name__ == "__main__":
    unittest.main()
