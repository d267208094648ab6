"""What few bits cost: a model that learns in a few seconds, its loss and that of its quantized exports, of stages that train for them,
and sizes that `plan` says before.

usage: losses_test.py FVLM_ENGINE MAKE_SHAPES"""
import functools
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import forked_program

engine, make_shapes = (str(Path(word).resolve()) for word in sys.argv[1:3])
del sys.argv[1:3]
recipe = Path(__file__).with_name("losses.lua")
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)


def run(*command):
    result = forked_program.run(command)
    assert result.returncode == 0, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    assert "warning" not in result.stderr, f"{command} warns\n{result.stderr}"
    return result.stdout


def loss_of(model, *more):
    arguments = ["--arg", f"data={root / 'shapes'}", "--stage", "learn", "--json", *more]
    return json.loads(run(engine, "eval", recipe, "--model", model, *arguments))["results"][0]["loss"]


def exported(model, out, *options):
    run(engine, "export", model, "--out", root / out, *options)
    return root / out


def setUpModule():
    global learnt, plain
    run(make_shapes, "--out", root / "shapes", "--samples", "questions=12000,heldout/questions=500")
    run(engine, "train", recipe, "--arg", f"data={root / 'shapes'}", "--run-dir", root / "run")
    learnt = root / "run" / "learn" / "step-000250"
    plain = loss_of(learnt)


@functools.cache
def aware(scheme, precision):
    """A stage that trains the decoder for a scheme behind a frozen encoder; its own last evaluation, and its export."""
    arguments = ["--arg", f"data={root / 'shapes'}", "--arg", f"scheme={scheme}", "--arg", f"precision={precision}"]
    folder = root / f"{scheme}-{precision}"
    run(engine, "train", recipe, *arguments, "--stage", "aware", "--from", learnt, "--run-dir", folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    own = [line for line in lines if line["kind"] == "evaluation"][-1]["loss"]
    return own, exported(folder / "aware" / "step-000300", f"{scheme}-{precision}-out", "--quantize", scheme)


class Losses(unittest.TestCase):
    def test_the_model_has_learnt(self):
        self.assertLess(plain, 0.7)

    def test_int8(self):
        loss = loss_of(exported(learnt, "int8", "--quantize", "int8"))
        self.assertNotEqual(loss, plain)
        self.assertLess(loss / plain - 1, 0.005, f"{plain} -> {loss}")

    def test_int4(self):
        calibrated = ["--calibrate", recipe, "--arg", f"data={root / 'shapes'}"]
        loss = loss_of(exported(learnt, "int4", "--quantize", "int4", *calibrated))
        self.assertNotEqual(loss, plain)
        self.assertLess(loss / plain - 1, 0.015, f"{plain} -> {loss}")

    def test_a_model_directory_in_the_folder_of_a_run(self):
        inside = exported(learnt, "run/export/bf16", "--dtype", "bf16")
        kept = exported(inside, "inside-int4", "--quantize", "int4")
        for name in ("plan.json", "stage.json"):
            self.assertTrue((kept / name).exists(), name)
            (inside / name).unlink()
        self.assertFalse((exported(inside, "inside-int8", "--quantize", "int8") / "stage.json").exists(), "of no stage of the run")

    def test_heads(self):
        """One in int8 changes this loss by 0.01 %, one in int4 by 0.12 %, whatever the layers have."""
        for scheme in ("int8", "int4"):
            layers = loss_of(exported(learnt, f"{scheme}-layers", "--quantize", scheme))
            for head, bound in (("int8", 0.001), ("int4", 0.004)):
                loss = loss_of(exported(learnt, f"{scheme}-head-{head}", "--quantize", scheme, "--head", head))
                self.assertNotEqual(loss, layers)
                self.assertLess(abs(loss / layers - 1), bound, f"{scheme}, head in {head}: {layers} -> {loss}")

    def test_training_for_few_bits(self):
        for scheme in ("int8", "int4"):
            for precision in ("fp32", "bf16"):
                own, model = aware(scheme, precision)
                loss = loss_of(model, "--dtype", precision)
                # What the stage computed with is what was exported; in bf16 sums are in another order.
                self.assertLess(abs(loss / own - 1), 0.001 if precision == "fp32" else 0.005, f"{scheme}, {precision}: {own} -> {loss}")
                self.assertLess(loss, plain * 1.001, f"{scheme}, {precision}: trained on, it is no better than {plain}")

    def test_a_recipe_skips_the_same_everywhere(self):
        """Of the stage "aware": what its export stores in few bits, and how large `plan` says that this is."""
        own, model = aware("int4", "fp32")
        size = 0
        for path in ("vision/model.safetensors", "decoder/model.safetensors", "connector.safetensors"):
            names = header(model / path)
            packed = [name for name in names if name.endswith("_packed")]
            self.assertEqual(len(packed), 14 if path.startswith("decoder") else 0, path)
            for name, tensor in names.items():
                begin, end = tensor["data_offsets"]
                if name.endswith("_shape"):
                    continue
                size += end - begin if name.endswith(("_packed", "_scale")) else (end - begin) // 2  # to be stored in bf16
        # A model directory that was made of the checkpoint is trained in the same stage.
        copy = exported(root / "int4-fp32" / "aware" / "step-000300", "aware-fp32", "--dtype", "fp32")
        again = exported(copy, "aware-fp32-int4", "--quantize", "int4")
        self.assertEqual(set(header(again / "decoder/model.safetensors")), set(header(model / "decoder/model.safetensors")))
        other = subprocess.run([engine, "export", copy, "--quantize", "int8", "--out", root / "aware-fp32-int8"], capture_output=True, text=True)
        self.assertIn("the stage was trained for int4, and its weights are stored in int8", other.stderr)
        arguments = ["--arg", f"data={root / 'shapes'}", "--arg", "scheme=int4"]
        said = re.search(r"exported, int4: ([\d.]+) KiB", run(engine, "plan", recipe, *arguments))
        self.assertIsNotNone(said)
        self.assertAlmostEqual(float(said[1]), size / 1024, delta=0.005 * size / 1024)


def header(path):
    with open(path, "rb") as file:
        tensors = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors.pop("__metadata__", None)
    return tensors


if __name__ == "__main__":
    unittest.main()
