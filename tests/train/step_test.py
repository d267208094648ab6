"""Whole training steps of the engine beside PyTorch's: the loss, every gradient, and the way of the loss over 200 steps
on one batch; on a GPU recorded and operation by operation.

usage: step_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE DEVICE SHAPE; exit 77 where the oracle's wheels are missing.
On a GPU the engine computes in bfloat16 and the oracle in float32; on a CPU both in float32. What bfloat16 costs is seen
where PyTorch computes in it, too: gradients of attention that is nearly uniform, as random weights make it, have cosines
of 0.998 there, and more than 0.999 here (bench/LOG.md)."""
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import unittest

shape_name, device = sys.argv.pop(), sys.argv.pop()
from against_oracle import engine, folder, load_file, tools, torch
from fvlm_oracle import Fvlm, cross_entropy, read_batch, save_file
from transformers import Dinov2Config, Dinov2Model, LlamaConfig, LlamaForCausalLM

ON_GPU = device == "cuda"
STEPS, RATE = (200, 1e-5) if ON_GPU else (60, 1e-3)
SAMPLES, FRAMES, TEXT, PROMPT = (4, 8, 128, 24) if ON_GPU else (3, 3, 24, 7)
LOSS, COSINE, NOISE, CURVE = (0.01, 0.999, 0.01, 0.05) if ON_GPU else (1e-5, 0.999999, 1e-4, 1e-4)
torch.backends.cudnn.allow_tf32 = False  # float32 is to be that


def tool_module(name):
    loader = importlib.machinery.SourceFileLoader(name, str(tools / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def engine_numbers(*arguments):
    """Of so many steps: losses and norms of each, the last one's gradients."""
    out = folder / ("-".join(arguments).strip("-") + ".safetensors")
    command = [str(engine), "bench", "profile", "--device", device, "--precision", "bf16" if ON_GPU else "fp32",
               "--model", str(folder / "model"), "--batch", str(folder / "batch"), "--numbers", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    assert "operation by operation" not in done.stderr, done.stderr
    return load_file(out)


def oracle_losses():
    how = ["--how", "graph"] if ON_GPU else []
    command = [sys.executable, str(tools / "train-step"), "--model", str(folder / "model"), "--batch", str(folder / "batch"),
               "--device", device, "--rate", str(RATE), *how]
    done = subprocess.run(command, input="1\n" * STEPS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.tensor([json.loads(line)["loss"] for line in done.stdout.splitlines()]).double()


def setUpModule():
    shape = tool_module("bench-step").SHAPES[shape_name]
    torch.manual_seed(3)
    towers = Dinov2Model(Dinov2Config(**shape["vision"])), LlamaForCausalLM(LlamaConfig(**shape["decoder"]))
    model = Fvlm(*towers, shape["query_dim"], visual_scale=0.14)
    for parameter in model.parameters():  # what bfloat16 holds, so that both sides begin with the same
        parameter.data = parameter.data.bfloat16().float()
    model.save(folder / "model")
    ids = torch.randint(shape["decoder"]["vocab_size"], (SAMPLES, TEXT))
    mask = (torch.arange(TEXT) >= PROMPT).long().expand(SAMPLES, -1)
    frames = torch.randn(SAMPLES * FRAMES, 3, shape["frame"], shape["frame"])
    save_file({"frames": frames, "frame_counts": torch.full((SAMPLES,), FRAMES), "input_ids": ids.flatten(),
               "text_lengths": torch.full((SAMPLES,), TEXT), "loss_mask": mask.flatten()}, folder / "batch")


class Step(unittest.TestCase):
    @staticmethod
    def oracle(dtype):
        model = Fvlm.load(folder / "model", dtype, device)
        loss = cross_entropy(model, read_batch(folder / "batch", device), "coarse_fine", logits=False)["loss"]
        loss.backward()
        return loss, {"grad." + name: gradient.cpu() for name, gradient in model.named_gradients()}

    def test_loss_and_every_gradient(self):
        loss, expected = self.oracle(torch.float32)
        if ON_GPU:
            self.told("PyTorch in bfloat16", *self.cosines(self.oracle(torch.bfloat16)[1], expected))
        ways = {"recorded": ("--warmup", "1", "--repeat", "3"), "eager": ("--eager", "--warmup", "1", "--repeat", "1")}
        for way in ways if ON_GPU else ("eager",):
            numbers = engine_numbers("--rate", "0", *ways[way])
            cosines, noise = self.cosines(numbers, expected)
            ours = numbers["losses"][-1].item()
            self.told(f"{way}: loss {ours:.6f}, the oracle's {loss.item():.6f}", cosines, noise)
            self.assertLess(abs(ours / loss.item() - 1), LOSS, way)
            self.assertLess((numbers["losses"] - ours).abs().max().item(), 1e-3 * ours, "a rate of 0 learns nothing")
            self.assertFalse({name: cosine for name, cosine in cosines.items() if not cosine >= COSINE}, way)
            self.assertLess(noise, NOISE, "what mathematics makes zero")

    @staticmethod
    def told(what, cosines, noise):
        (least, name), *_ = sorted((cosine, name) for name, cosine in cosines.items())
        below = sum(cosine < COSINE for cosine in cosines.values())
        print(f"{shape_name}, {device}, {what}; {len(cosines)} gradients, {below} below {COSINE}, least {least:.6f} ({name}), "
              f"mean {sum(cosines.values()) / len(cosines):.6f}; keys' biases at most {noise:.1e} of their weights'", flush=True)

    def cosines(self, found, expected):
        """Of each gradient with the right one. Those of keys' biases are zero but for rounding: how large they get, beside
        those of the keys' weights."""
        cosines, noise = {}, 0.0
        for name, right in expected.items():
            if not right.any():  # mask_token: in the files for transformers' sake alone
                self.assertFalse(name in found and found[name].any(), name)
                continue
            ours, right = (each.double().flatten() for each in (found[name], right))
            if name.endswith("attention.key.bias"):
                noise = max(noise, (ours.norm() / found[name.replace("bias", "weight")].norm()).item())
                continue
            cosines[name] = torch.nn.functional.cosine_similarity(ours, right, dim=0).item()
        self.assertGreater(len(cosines), 40)
        return cosines, noise

    def test_a_fixed_batch_is_learnt_as_pytorch_learns_it(self):
        theirs = oracle_losses()
        ours = engine_numbers("--rate", str(RATE), "--warmup", "1", "--repeat", str(STEPS - 1))["losses"]
        self.assertEqual(len(ours), STEPS)
        apart = (ours - theirs).abs() / theirs[0]
        print(f"{shape_name}, {device}: {STEPS} steps, loss {ours[0]:.4f} -> {ours[-1]:.4f}, the oracle's {theirs[0]:.4f} -> "
              f"{theirs[-1]:.4f}; at most {apart.max():.2e} of the first loss apart, {apart.mean():.2e} in the mean", flush=True)
        self.assertLess(theirs[-1], 0.7 * theirs[0])
        self.assertLess(apart.max().item(), CURVE)

    @unittest.skipUnless(ON_GPU, "nothing is recorded on a CPU")
    def test_recorded_steps_are_those_that_were_not_to_the_bit(self):
        steps = ("--deterministic", "--warmup", "2", "--repeat", "4")
        recorded, eager = engine_numbers(*steps), engine_numbers("--eager", *steps)
        self.assertEqual(recorded.keys(), eager.keys())
        differ = [name for name in eager if not torch.equal(recorded[name], eager[name])]
        print(f"{shape_name}: {len(eager)} tensors after 6 steps, {len(differ)} differ between recorded and eager", flush=True)
        self.assertEqual(differ, [])


if __name__ == "__main__":
    unittest.main()
