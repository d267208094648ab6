"""Five stages of a tiny fVLM on a GPU, and a sixth that is rewarded for its answers: recorded steps are those that run operation by operation, and copies that overlap
them change nothing, to the bit where kernels are deterministic; and they are those of the CPU but for rounding.

usage: gpu_test.py FVLM_ENGINE MAKE_SHAPES"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

make_shapes, engine = sys.argv.pop(), sys.argv.pop()
WEIGHTS = ("vision/model.safetensors", "decoder/model.safetensors", "connector.safetensors",
           "training_state/optimizer.safetensors")
OF_THE_MOMENT = ("time.", "memory_bytes", "device_memory_bytes", "device_memory_fragmentation", "gpu_utilization", "data_wait_share", "seconds", "mfu")
RECIPE = """
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function mix(source)
  source.max_frames, source.max_text_tokens, source.system = 2, 48, ""
  return fvlm.mix(source)
end
local function stage(name, described, lr)
  lr = lr or 2e-3
  described.optimizer = fvlm.adamw { lr = lr, weight_decay = 0.01 }
  if fvlm.arg("optimizer", "adamw") == "muon" then
    described.optimizer = fvlm.muon { lr = lr, weight_decay = 0.01, others = { lr = lr } }
  end
  described.schedule = fvlm.cosine { to_share = 0.1, warmup = 0.1 }
  if fvlm.arg("explodes", "no") == "yes" then -- weights a million times as large with each of the later steps
    described.optimizer.weight_decay = 1000
    described.schedule = function(progress) return progress > 0.3 and 5e5 or 1 end
  end
  described.batch = 8
  described.packing = { frames = 16, tokens = 512, segments = 8 }
  return fvlm.stage(name, described)
end
local rewards = fvlm.arg("rewards", "no") == "yes" and stage("reward", {
  data = mix { { data .. "/questions/*.tar" } }, samples = 80,
  objective = fvlm.grpo { answers = 4, max_new_tokens = 8, kl = 0.1, reward = function(answer) return #answer.text % 4 end, show = 100 } }) or nil
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
  stage("prefer", { data = mix { { data .. "/pairs/*.tar" } }, samples = 80,
                    objective = fvlm.dpo { beta = 0.1, cache_reference = fvlm.arg("cached", "no") == "yes" } }),
  stage("judge", { data = mix { { text = data .. "/../judged.jsonl" } }, samples = 80,
                   objective = fvlm.kto { beta = 0.5, cache_reference = fvlm.arg("cached", "no") == "yes" } }),
  -- A smaller rate: AdamW's steps are as large for gradients that are rounding alone.
  stage("find", { data = mix { { data .. "/captions/*.tar", fields = { query = "caption" } } }, samples = 80,
                  objective = fvlm.contrastive { temperature = 0.1, symmetric = true, dimensions = 8 } }, 1e-4),
  rewards,
}
"""


class OnGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        subprocess.run([make_shapes, "--out", cls.folder / "data", "--frames", "2", "--size", "16", "--samples",
                        "captions=160,text=40,questions=80,pairs=80"], check=True, capture_output=True)
        judged = [{"prompt": f"Which is {i}?", "completion": "Red." if i % 3 else f"Blue, and {i}.", "label": i % 3 > 0} for i in range(40)]
        (cls.folder / "judged.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in judged))
        (cls.folder / "recipe.lua").write_text(RECIPE)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def command(self, name, device, *sets, **arguments):
        command = [engine, "train", self.folder / "recipe.lua", "--device", device, "--run-dir", self.folder / name]
        for key, value in {"data": self.folder / "data", **arguments}.items():
            command += ["--arg", f"{key}={value}"]
        for each in sets:
            command += ["--set", each]
        return command

    def lines(self, name):
        """What does not depend on the moment, of each line of metrics."""
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items()
                 if not key.startswith(OF_THE_MOMENT) and not key.endswith("_per_second")} for line in lines]

    def run_stages(self, name, device, *sets, **arguments):
        """The lines of its steps. A run that is done already is not run again. A CPU has one thread: several would divide a pack, and with
        it what fvlm.kto takes its mean over."""
        done = subprocess.run(self.command(name, device, *sets, **arguments), capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertNotIn("capturing a CUDA graph failed", done.stderr)
        steps = [line for line in self.lines(name) if line["kind"] == "step"]
        self.assertEqual(len(steps), 70 if "rewards" in arguments else 60)
        return steps

    def recorded(self):
        return self.run_stages("recorded", "cuda", "deterministic=true")

    def eager(self):
        return self.run_stages("eager", "cuda", "deterministic=true", "speed.graphs=false")

    def assert_same(self, left, right):
        """Every line of metrics, and every bit of each stage's last checkpoint."""
        for ours, theirs in zip(self.lines(left), self.lines(right), strict=True):
            self.assertEqual(ours, theirs)
        for stage in sorted(path.name for path in (self.folder / left).iterdir() if list(path.glob("step-*"))):
            one, other = (sorted((self.folder / name / stage).glob("step-*"))[-1] for name in (left, right))
            self.assertEqual(one.name, other.name)
            for file in WEIGHTS:
                self.assertTrue((one / file).read_bytes() == (other / file).read_bytes(), f"{file} of {stage}")

    def test_recorded_steps_are_those_that_were_not_to_the_bit(self):
        recorded, eager = self.recorded(), self.eager()
        for ours, theirs in zip(recorded, eager):
            self.assertEqual(ours, theirs)
        for line in (self.folder / "recorded" / "metrics.jsonl").read_text().splitlines():
            if '"kind":"step"' in line:
                self.assertGreater(json.loads(line)["device_memory_bytes"], 0)
                for share in ("device_memory_fragmentation", "gpu_utilization"):
                    self.assertTrue(0 <= json.loads(line)[share] <= 1, line)

    def test_copies_and_readings_beside_a_step_change_no_bit(self):
        self.recorded()
        self.run_stages("apart", "cuda", "deterministic=true", "speed.overlap_copies=false")
        self.assert_same("recorded", "apart")
        self.eager()
        self.run_stages("eager-apart", "cuda", "deterministic=true", "speed.graphs=false", "speed.overlap_copies=false")
        self.assert_same("eager", "eager-apart")

    def test_packs_of_a_step_one_after_the_other_change_no_bit(self):
        small = [f"stages.{stage}.packing.segments=3" for stage in ("align", "instruct", "prefer")]
        self.run_stages("packs", "cuda", "deterministic=true", *small)
        self.run_stages("packs-off", "cuda", "deterministic=true", "speed.overlap_copies=false", *small)
        self.assert_same("packs", "packs-off")

    def test_a_recorded_reference_says_the_same_to_the_bit(self):
        recorded = self.run_stages("asked", "cuda", "deterministic=true", cached="yes")
        eager = self.run_stages("asked-eager", "cuda", "deterministic=true", "speed.graphs=false", cached="yes")
        for ours, theirs in zip(recorded, eager):
            self.assertEqual(ours, theirs)

    def test_numbers_that_are_not_finite_are_told_of_in_the_same_lines(self):
        words = []
        for name, *sets in (("explodes",), ("explodes-off", "speed.overlap_copies=false")):
            command = self.command(name, "cuda", "deterministic=true", "guard.nonfinite_limit=3", *sets, explodes="yes")
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("3 steps in a row", done.stderr)
            words.append([line for line in done.stderr.splitlines() if "in a row" in line or "stage align, step" in line])
        self.assertEqual(*words)
        skipped = [line for line in self.lines("explodes") if line.get("what") == "nonfinite"]
        self.assertEqual(len(skipped), 3)
        self.assertEqual(self.lines("explodes"), self.lines("explodes-off"))

    def test_a_killed_run_goes_on_to_the_same_bits(self):
        sets = "deterministic=true", "checkpoint.every=3"
        self.run_stages("whole", "cuda", *sets)
        killed = 0
        metrics = self.folder / "killed" / "metrics.jsonl"
        for lines in (5, 17):
            process = subprocess.Popen(self.command("killed", "cuda", *sets), stderr=subprocess.DEVNULL)
            while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < lines):
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
        self.assertGreater(killed, 0)
        self.run_stages("killed", "cuda", *sets)
        self.assert_same("whole", "killed")

    def test_answers_that_are_rewarded_and_their_steps_are_the_same_to_the_bit(self):
        """Recorded or not, with and without overlapping copies, and where a run was killed."""
        sets = "deterministic=true", "checkpoint.every=3"
        self.run_stages("rewarded", "cuda", *sets, rewards="yes")
        for name, switch in (("rewarded-eager", "speed.graphs=false"), ("rewarded-apart", "speed.overlap_copies=false")):
            self.run_stages(name, "cuda", *sets, switch, rewards="yes")
            self.assert_same("rewarded", name)
        process = subprocess.Popen(self.command("rewarded-killed", "cuda", *sets, rewards="yes"), stderr=subprocess.DEVNULL)
        metrics = self.folder / "rewarded-killed" / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b'"stage":"reward"') > 4):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.run_stages("rewarded-killed", "cuda", *sets, rewards="yes")
        self.assert_same("rewarded", "rewarded-killed")
        answers = [(self.folder / name / "reward" / "rollouts.jsonl").read_text()
                   for name in ("rewarded", "rewarded-eager", "rewarded-apart", "rewarded-killed")]
        self.assertEqual(answers, answers[:1] * 4)
        self.assertEqual(answers[0].count("\n"), 80)

    def assert_close(self, ours, theirs):
        for one, other in zip(ours, theirs, strict=True):
            for key in ("loss", "gradient_norm"):
                # Embeddings that differ by thousandths of their length have a gradient with so many digits less.
                tolerance = 1e-3 if other["stage"] == "find" and key == "gradient_norm" else 1e-4
                self.assertLess(abs(one[key] - other[key]), tolerance * max(1, abs(other[key])),
                                f"{key} of step {other['step']} of {other['stage']}: {one[key]}, {other[key]}")

    def test_a_gpu_and_a_cpu_take_the_same_steps_but_for_rounding(self):
        self.assert_close(self.run_stages("gpu", "cuda"), self.run_stages("cpu", "cpu"))

    def test_muon_takes_the_same_steps_recorded_or_not_and_those_of_a_cpu_but_for_rounding(self):
        self.run_stages("muon", "cuda", "deterministic=true", optimizer="muon")
        self.run_stages("muon-eager", "cuda", "deterministic=true", "speed.graphs=false", optimizer="muon")
        self.assert_same("muon", "muon-eager")
        self.assert_close(self.run_stages("muon-gpu", "cuda", optimizer="muon"),
                          self.run_stages("muon-cpu", "cpu", optimizer="muon"))

    def test_work_that_is_saved_changes_nothing_but_rounding(self):
        saved = self.run_stages("gpu", "cuda")
        for switch in ("coarse_in_tower", "skip_last_patches", "fold_layer_scale", "loss_tokens_only", "joint_weight_gradients",
                       "shared_preference_frames", "shared_repeated_frames", "text_without_tower"):
            with self.subTest(switch):
                self.assert_close(saved, self.run_stages(switch, "cuda", f"speed.{switch}=false"))

    def test_a_step_taken_apart_adds_up(self):
        done = subprocess.run([engine, "bench", "step", "--configurations", "tiny:2", "--frames", "2", "--text", "9", "--json"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        (row,) = json.loads(done.stdout)["rows"]
        parts = [part["name"] for part in row["parts"]]
        for name in ("vision", "coarse", "fine", "decoder", "head", "decoder backward", "fine backward", "coarse backward",
                     "vision backward", "optimizer"):
            self.assertIn(name, parts)
        of_operations = sum(operation["ms"] for operation in row["operations"])
        self.assertAlmostEqual(of_operations + row["others"]["ms"], row["busy_ms"])
        self.assertGreater(of_operations, row["others"]["ms"])
        self.assertGreaterEqual(row["flow"]["launches"], row["recorded_kernels"])
        self.assertGreaterEqual(row["flow"]["span_ms"], row["flow"]["busy_ms"])
        self.assertGreaterEqual(row["flow"]["busy_ms"], row["flow"]["beside_ms"])
        for operation in row["operations"]:
            self.assertGreater(min(operation["ms"], operation["least_ms"], operation["calls"]), 0, operation)


if __name__ == "__main__":
    unittest.main()
