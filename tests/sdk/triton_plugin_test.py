#!/usr/bin/env python3
"""triton_plugin_test.py ENGINE SOURCE: tools/triton-plugin makes a plugin of its example that the engine takes; the example
computes what PyTorch does, by Triton's interpreter on the CPU; and mistakes in a kernel file are named. With FVLM_TEST_GPU
the plugin also passes `plugin check` on a GPU."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

engine, source = map(pathlib.Path, sys.argv[1:3])
example = source / "tools/triton/swiglu.py"


def tool(*words, **environment):
    return subprocess.run([sys.executable, source / "tools/triton-plugin", *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **environment})


def plugin(folder):
    made = tool(example, "--out", folder / "kernels-triton", "--sdk", source / "sdk", CFLAGS="-O2 -Wall -Wextra -Werror")
    assert made.returncode == 0, made.stdout + made.stderr
    symbols = subprocess.run(["nm", "-D", "--defined-only", folder / "kernels-triton/kernels-triton.so"], check=True,
                             capture_output=True, text=True).stdout.split()
    assert symbols[2::3] == ["fvlm_plugin_entry_v1"], symbols
    text = (folder / "kernels-triton/kernels.h").read_text()
    code = re.findall(r"code_\w+\[\].*?\{\s*127, 69, 76, 70,", text, re.DOTALL)
    assert len(code) == 12, f"{len(code)} ELF images, not one of each of three types, two functions and two variants"
    listed = json.loads(subprocess.run([engine, "plugin", "list", "--json", "--plugin-dir", folder], check=True,
                                       capture_output=True, text=True).stdout)
    [found] = [each for each in listed["plugins"] if each["name"] == "kernels-triton"]
    reason = found.get("reason", "")
    assert found["state"] == "ready" or "CUDA" in reason or "GPU" in reason, found
    if os.environ.get("FVLM_TEST_GPU"):
        sees_gpus = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}  # empty in this test
        checked = subprocess.run([engine, "plugin", "check", folder / "kernels-triton", "--device", "cuda"], capture_output=True,
                                 text=True, env=sees_gpus)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def numbers():
    """In a process of its own, as the variable has to be there before Triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    spec = importlib.util.spec_from_file_location("swiglu", example)
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    torch.manual_seed(1)
    rows, width = 3, kernels.BLOCK + 5
    gate, up, d_y = (torch.randn(rows, width + 3)[:, :width] for _ in range(3)) # rows that lie apart
    y = torch.zeros(rows, width)
    grid = (rows, 2)
    kernels.forward[grid](gate, up, y, rows, width, gate.stride(0), up.stride(0), y.stride(0), BLOCK=kernels.BLOCK)
    x, u = gate.clone().requires_grad_(), up.clone().requires_grad_()
    expected = torch.nn.functional.silu(x) * u
    expected.backward(d_y)
    torch.testing.assert_close(y, expected.detach(), rtol=1e-6, atol=1e-6)
    strides = [tensor.stride(0) for tensor in (gate, up, d_y, gate, up)]
    kernels.backward[grid](gate, up, d_y, gate, up, rows, width, *strides, BLOCK=kernels.BLOCK) # in place
    torch.testing.assert_close(gate, x.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(up, u.grad, rtol=1e-5, atol=1e-6)


def mistakes(folder):
    text = example.read_text()
    for wrong, said in ((text.replace("up_stride, y_stride", "y_stride, up_stride"), "forward: expected the arguments gate, up, y"),
                        (text.replace('"swiglu"', '"rope"'), "OPERATION is 'rope'"),
                        (text.replace("WARPS = 4\n", ""), "it lacks WARPS")):
        file = folder / "wrong.py"
        file.write_text(wrong)
        made = tool(file, "--out", folder / "wrong")
        assert made.returncode != 0 and said in made.stderr, made.stderr
        assert not (folder / "wrong").exists()
    made = tool(example, "--out", folder)
    assert made.returncode != 0 and "the path already exists" in made.stderr, made.stderr


def main():
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("numpy") is None or not shutil.which("cc"):
        print("skipped: this needs triton, numpy and a C compiler")
        sys.exit(77)
    if sys.argv[3:] == ["numbers"]:
        numbers()
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fvlm-triton-"))
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    os.environ["FVLM_CACHE"] = str(folder / "engine-cache")
    try:
        plugin(folder)
        mistakes(folder)
        subprocess.run([sys.executable, __file__, engine, source, "numbers"], check=True)
    finally:
        shutil.rmtree(folder)


main()
