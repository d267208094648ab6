"""What quantizing costs a tiny trained model on held-out samples, with and without calibration and training for it.

usage: loss_test.py FVLM_ENGINE MAKE_SHAPES"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

engine, make_shapes = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)
RECIPE = """
local fvlm = require "fvlm"
local function mix(data)
  return fvlm.mix { { data .. "/captions/*.tar" }, max_frames = 4, max_text_tokens = 64, system = "" }
end
local aware = fvlm.arg("scheme", "") ~= ""
local function stage(name, samples, from)
  return fvlm.stage(name, {
    from = from,
    data = mix "shapes",
    mode = "coarse_fine",
    objective = fvlm.next_token { on = "all" },
    optimizer = fvlm.adamw { lr = 2e-3, weight_decay = 0.01 },
    schedule = fvlm.cosine { to_share = 0.1, warmup = 0.03 },
    samples = samples,
    batch = 32,
    packing = { frames = 128, tokens = 2048, segments = 32 },
    quantization_aware = aware,
    evaluation = { fvlm.evaluation "heldout" { data = mix "others", modes = "coarse_fine" } },
  })
end
return fvlm.recipe {
  name = "tiny",
  precision = "fp32",
  model = fvlm.model {
    image_size = 32,
    vision = fvlm.dinov2 { width = 64, layers = 2, heads = 4, patch_size = 8 },
    decoder = fvlm.llama { width = 64, layers = 2, heads = 4, mlp = 128, max_positions = 512, tokenizer = "shapes/tokenizer" },
    connector = { query_dim = 64 },
  },
  quantization = aware and { scheme = fvlm.arg("scheme", ""), skip = { "connector.*" } } or nil,
  aware and stage("aware", 1600, "run") or stage("plain", 12800),
}
"""


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=root,
                            env={**os.environ, "FVLM_CACHE": str(root / "cache")})
    assert result.returncode == 0, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def loss(model):
    [result] = json.loads(run(engine, "eval", "recipe.lua", "--model", model, "--json"))["results"]
    return result["loss"]


def setUpModule():
    run(make_shapes, "--out", "shapes", "--samples", "captions=6400")
    run(make_shapes, "--out", "others", "--seed", "2", "--samples", "captions=400")
    (root / "recipe.lua").write_text(RECIPE)
    run(engine, "train", "recipe.lua", "--run-dir", "run")


def exported(model, name, scheme, *options):
    run(engine, "export", model, "--quantize", scheme, "--out", name, *options)
    return loss(name)


class Loss(unittest.TestCase):
    def test_after_training(self):
        plain = loss("run")
        costs = {"int8": exported("run", "int8", "int8") / plain - 1, "int4": exported("run", "int4", "int4") / plain - 1,
                 "int4, calibrated": exported("run", "calibrated", "int4", "--calibrate", "recipe.lua") / plain - 1}
        print(f"loss {plain:.5f}; " + ", ".join(f"{name} {100 * cost:+.3f} %" for name, cost in costs.items()))
        self.assertLess(abs(costs["int8"]), 0.005)
        self.assertLess(costs["int4"], 0.05)
        self.assertLess(costs["int4, calibrated"], 0.05)

    def test_training_for_it(self):
        for scheme in ("int8", "int4"):
            run(engine, "train", "recipe.lua", "--arg", f"scheme={scheme}", "--run-dir", f"aware-{scheme}")
            plain, quantized = loss(f"aware-{scheme}"), exported(f"aware-{scheme}", f"{scheme}-aware", scheme)
            print(f"trained for {scheme}: {plain:.5f} without, {quantized:.5f} with ({100 * (quantized / plain - 1):+.3f} %)")
            self.assertLess(quantized / plain - 1, 0.001)


if __name__ == "__main__":
    unittest.main()
