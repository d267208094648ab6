"""Three stages of a tiny fVLM, step by step beside PyTorch: the same batches, losses within 1e-4 for 50 steps each.

usage: oracle_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE TRAIN_PROBE MAKE_SHAPES PLUGINS; exit 77 without the wheels."""
import copy
import json
import math
import subprocess
import sys
import unittest

probe, make_shapes, plugins = (sys.argv.pop(3) for _ in range(3))
from against_oracle import folder, torch
from fvlm_oracle import Fvlm, cross_entropy, preference, read_batch

STEPS, BATCH, RATE, WARMUP, END = 50, 8, 2e-3, 0.1, 0.1
RECIPE = """
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function mix(source)
  source.max_frames, source.max_text_tokens, source.system = 3, 64, ""
  return fvlm.mix(source)
end
local function stage(name, described)
  described.optimizer = fvlm.adamw { lr = { connector = 4e-3, vision = 2e-3, decoder = 2e-3 }, weight_decay = 0.01 }
  described.schedule = fvlm.cosine { to_share = 0.1, warmup = 0.1 }
  described.batch, described.samples = 8, 400
  described.packing = { frames = 24, tokens = 2048, segments = 8 }
  return fvlm.stage(name, described)
end
return fvlm.recipe {
  name = "oracle", precision = "fp32", log_every = 1,
  model = fvlm.model {
    image_size = 32,
    vision = fvlm.dinov2 { width = 32, layers = 2, heads = 4, patch_size = 8 },
    decoder = fvlm.llama { width = 32, layers = 2, heads = 4, kv_heads = 2, mlp = 64, tokenizer = data .. "/tokenizer" },
    connector = { query_dim = 24 },
  },
  stage("align", { data = mix { { data .. "/captions/*.tar" }, { text = data .. "/text/*.tar" }, text_ratio = 0.2 },
                   objective = fvlm.next_token { on = "all" } }),
  stage("instruct", { data = mix { { data .. "/questions/*.tar" } },
                      objective = { fvlm.next_token { on = "answer" },
                                    fvlm.next_token { on = "answer", pass = "coarse", weight = 0.5 } } }),
  stage("prefer", { data = mix { { data .. "/pairs/*.tar" } }, objective = fvlm.dpo { beta = 0.1 } }),
}
"""


def share(step):
    """Of the base rate: risen after the warm-up's steps, then half a cosine."""
    if step < WARMUP * STEPS:
        return (step + 1) / (WARMUP * STEPS)
    part = (step / STEPS - WARMUP) / (1 - WARMUP)
    return END + (1 - END) * (1 + math.cos(math.pi * part)) / 2


class Stages(unittest.TestCase):
    def test_losses_follow(self):
        data, out = folder / "data", folder / "out"
        (folder / "oracle.lua").write_text(RECIPE)
        subprocess.run([make_shapes, "--out", str(data), "--frames", "3", "--samples",
                        "captions=400,text=100,questions=400,pairs=400"], check=True, capture_output=True)
        done = subprocess.run([probe, str(folder / "oracle.lua"), str(data), str(out), plugins], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
        model = Fvlm.load(out / "start")
        worst = {}
        for stage in ("align", "instruct", "prefer"):
            ours = [line for line in lines if line["kind"] == "step" and line["stage"] == stage]
            self.assertEqual(len(ours), STEPS)
            reference = copy.deepcopy(model)
            fast = [p for n, p in model.named_parameters() if not n.startswith(("vision.", "decoder."))]
            slow = [p for n, p in model.named_parameters() if n.startswith(("vision.", "decoder."))]
            optimizer = torch.optim.AdamW([{"params": fast, "base": 2 * RATE}, {"params": slow, "base": RATE}],
                                          lr=RATE, weight_decay=0.01)
            for step, line in enumerate(ours):
                batch = read_batch(out / "batches" / f"{stage}-{step:03}.safetensors")
                for group in optimizer.param_groups:
                    group["lr"] = group["base"] * share(step)
                if stage == "prefer":
                    made = preference(model, reference, batch, "coarse_fine", 0.1)
                    self.assertAlmostEqual(line["reward_margin"], made["margin"].item(), delta=1e-4)
                else:
                    made = cross_entropy(model, batch, "coarse_fine", 0.5 if stage == "instruct" else 0.0)
                loss = made["loss"]
                worst[stage] = max(worst.get(stage, 0), abs(line["loss"] - loss.item()))
                self.assertLess(abs(line["loss"] - loss.item()), 1e-4, f"{stage}, step {step}")
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                for parameter in model.parameters():
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                self.assertLess(abs(line["gradient_norm"] / norm.item() - 1), 1e-3, f"{stage}, step {step}")
                optimizer.step()
        print("losses differ by at most", {stage: f"{value:.1e}" for stage, value in worst.items()})


if __name__ == "__main__":
    unittest.main()
