"""A Gemma 3 on a GPU, with windows that are shorter than its texts and images whose rows attend to each other: in float32 its numbers, steps
and tokens are those of the CPU but for rounding, in bf16 its loss is close to them, and captured steps are those that ran one operation after the
other.

usage: gemma3_gpu_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import functools
import unittest

from picture_questions import PROMPTS, answer, engine, folder, load_file, make, metrics, run, save_file, torch

SIZES = [(32, 32), (64, 64), (120, 30)]


def setUpModule():
    make("make-gemma3", SIZES, 2, 512)


def trained(name, *options):
    """Loss and norm of the gradient of each step, and how many steps were replayed."""
    run(engine, "train", "recipe.lua", "--run-dir", name, *(word for option in options for word in option.split(" ")))
    lines = metrics(name)
    return [(line["loss"], line["gradient_norm"]) for line in lines], sum(line.get("time.graph") is not None for line in lines)


@functools.cache
def traced(device, dtype):
    """A text with two images, each of four rows."""
    ids = torch.arange(60) % 200
    ids[5:9] = ids[30:34] = -1
    save_file({"frames": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)), "frame_counts": torch.tensor([2]),
               "input_ids": ids, "loss_mask": (ids >= 0).to(torch.uint8), "text_lengths": torch.tensor([60])}, folder / "batch.safetensors")
    out = folder / f"{device}-{dtype}.safetensors"
    run(engine, "trace", "model", "--batch", "batch.safetensors", "--out", out, "--grads", "--device", device, "--dtype", dtype)
    return {name: tensor.float() for name, tensor in load_file(out).items() if tensor.is_floating_point()}


class OnGpu(unittest.TestCase):
    def test_numbers_are_those_of_a_cpu(self):
        right, exact, rounded = traced("cpu", "fp32"), traced("cuda", "fp32"), traced("cuda", "bf16")
        floor = 0.01 * max(tensor.abs().max().item() for name, tensor in right.items() if name.startswith("grad."))
        for name, tensor in right.items():
            scale = max(tensor.abs().max().item(), floor if name.startswith("grad.") else 0)
            self.assertLessEqual((exact[name] - tensor).abs().max().item(), 1e-4 * scale, name)
        self.assertAlmostEqual(rounded["loss"].item() / right["loss"].item(), 1, delta=0.02)

    def test_steps_are_those_of_a_cpu(self):
        for ours, theirs in zip(trained("gpu", "--device cuda")[0], trained("cpu", "--device cpu")[0], strict=True):
            self.assertAlmostEqual(ours[0] / theirs[0], 1, delta=1e-4)
            self.assertAlmostEqual(ours[1] / theirs[1], 1, delta=1e-3)

    def test_captured_steps_are_eager_ones(self):
        captured, replayed = trained("captured", "--device cuda", "--set precision=bf16", "--set deterministic=true", "--set stages.sft.samples=320")
        eager, none = trained("eager", "--device cuda", "--set precision=bf16", "--set deterministic=true", "--set stages.sft.samples=320",
                        "--set speed.graphs=false")
        self.assertEqual(captured, eager)
        self.assertGreater(replayed, len(captured) // 4)
        self.assertEqual(none, 0)

    def test_tokens_are_those_of_a_cpu(self):
        for number in range(len(SIZES)):
            for prompt in PROMPTS:
                ours, theirs = (answer("model", "--image", f"{number}.png", "--prompt", prompt, "--device", device, "--dtype", "fp32")["ids"]
                                for device in ("cuda", "cpu"))
                self.assertEqual(ours, theirs)


if __name__ == "__main__":
    unittest.main()
