"""Three stages of a tiny fVLM on a GPU: recorded steps are those that run operation by operation, to the bit where
kernels are deterministic, and those of the CPU but for rounding.

usage: gpu_test.py FVLM_ENGINE MAKE_SHAPES"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

make_shapes, engine = sys.argv.pop(), sys.argv.pop()
OF_THE_MOMENT = ("time.", "memory_bytes", "data_wait_share", "seconds", "mfu")
RECIPE = """
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function mix(source)
  source.max_frames, source.max_text_tokens, source.system = 2, 48, ""
  return fvlm.mix(source)
end
local function stage(name, described)
  described.optimizer = fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }
  described.schedule = fvlm.cosine { to_share = 0.1, warmup = 0.1 }
  described.batch = 8
  described.packing = { frames = 16, tokens = 512, segments = 8 }
  return fvlm.stage(name, described)
end
return fvlm.recipe {
  name = "gpu", precision = "fp32", log_every = 1,
  model = fvlm.model {
    image_size = 16,
    vision = fvlm.dinov2 { width = 32, layers = 2, heads = 2, patch_size = 8 },
    decoder = fvlm.llama { width = 32, layers = 2, heads = 2, mlp = 64, max_positions = 256, tokenizer = data .. "/tokenizer" },
    connector = { query_dim = 24 },
  },
  stage("align", { data = mix { { data .. "/captions/*.tar" }, { text = data .. "/text/*.tar" }, text_ratio = 0.2 },
                   objective = fvlm.next_token { on = "all" }, samples = 160 }),
  stage("instruct", { data = mix { { data .. "/questions/*.tar" } }, samples = 80,
                      objective = { fvlm.next_token { on = "answer" },
                                    fvlm.next_token { on = "all", pass = "coarse", weight = 0.5 } } }),
  stage("prefer", { data = mix { { data .. "/pairs/*.tar" } }, objective = fvlm.dpo { beta = 0.1 }, samples = 80 }),
}
"""


class OnGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        subprocess.run([make_shapes, "--out", cls.folder / "data", "--frames", "2", "--size", "16", "--samples",
                        "captions=160,text=40,questions=80,pairs=80"], check=True, capture_output=True)
        (cls.folder / "recipe.lua").write_text(RECIPE)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def run_stages(self, name, device, *sets):
        command = [engine, "train", self.folder / "recipe.lua", "--arg", f"data={self.folder / 'data'}", "--device", device,
                   "--run-dir", self.folder / name]
        for each in sets:
            command += ["--set", each]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertNotIn("operation by operation", done.stderr)
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "step"]
        self.assertEqual(len(steps), 40)
        return [{key: value for key, value in step.items()
                 if not key.startswith(OF_THE_MOMENT) and not key.endswith("_per_second")} for step in steps]

    def test_recorded_steps_are_those_that_were_not_to_the_bit(self):
        recorded = self.run_stages("recorded", "cuda", "deterministic=true")
        eager = self.run_stages("eager", "cuda", "deterministic=true", "speed.graphs=false")
        for ours, theirs in zip(recorded, eager):
            self.assertEqual(ours, theirs)

    def test_a_gpu_and_a_cpu_take_the_same_steps_but_for_rounding(self):
        on_gpu, on_cpu = self.run_stages("gpu", "cuda"), self.run_stages("cpu", "cpu")
        for ours, theirs in zip(on_gpu, on_cpu):
            for key in ("loss", "gradient_norm"):
                self.assertLess(abs(ours[key] - theirs[key]), 1e-4 * max(1, abs(theirs[key])),
                                f"{key} of step {theirs['step']} of {theirs['stage']}: {ours[key]}, {theirs[key]}")


if __name__ == "__main__":
    unittest.main()
