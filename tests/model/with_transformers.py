"""What tests beside transformers share: the program, a folder for their files, one thread and no progress bars, and how near to
transformers' numbers ours have to be. Exits with 77 (skipped) where the oracle's wheels are missing. The script's first argument is
FVLM_ENGINE."""
import copy
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import forked_program

engine = Path(sys.argv.pop(1)).resolve()
os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import PIL
    import safetensors
    from safetensors.torch import load_file, save_file
    from transformers import Dinov2Config, Dinov2Model
    from transformers.utils import logging
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

torch.set_num_threads(1)
logging.disable_progress_bar()
logging.set_verbosity_error()
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)


def run(*command, code=0):
    """What the command prints: on standard output, or, where it is to fail with a code, on standard error."""
    result = forked_program.run(command, env={**os.environ, "FVLM_CACHE": str(folder / "cache")})
    assert result.returncode == code, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stderr if code else result.stdout


def changed_copy(source, config=None, tensors=None, files=("config.json", "model.safetensors")):
    """A copy of a folder, in place of the last one, whose configuration and tensors, in these files, the functions change in place."""
    copy = folder / "changed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    if config:
        content = json.loads((copy / files[0]).read_text())
        config(content)
        (copy / files[0]).write_text(json.dumps(content))
    if tensors:
        content = load_file(copy / files[1])
        tensors(content)
        save_file(content, copy / files[1], metadata={"format": "pt"})
    return copy


def draw(model):
    """Random parameters of which every one matters."""
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.data = torch.randn_like(parameter) * (1.2 / parameter.shape[-1] ** 0.5)
        elif parameter.dim() > 1:
            parameter.data = torch.randn_like(parameter) * (1.2 / parameter[0].numel() ** 0.5)
        else:
            parameter.data += 0.2 * torch.randn_like(parameter)


def with_experts_apart(tensors):
    """Tensors by name, with a tensor for each matrix of an expert in place of transformers' stacks of them."""
    out = {}
    for name, stack in tensors.items():
        stem, end, _ = name.partition(".experts.gate_up_proj")
        if not end:
            stem, end, _ = name.partition(".experts.down_proj")
        if not end or stack.dim() != 3:
            out[name] = stack
            continue
        words = ("gate_proj", "up_proj") if "gate_up" in end else ("down_proj",)
        if stem.endswith("feed_forward"):  # LFM2's
            words = ("w1", "w3") if "gate_up" in end else ("w2",)
        for number, expert in enumerate(stack):
            parts = dict(zip(words, expert.chunk(2) if "gate_up" in end else [expert]))
            out |= {f"{stem}.experts.{number}.{part}.weight": tensor.contiguous() for part, tensor in parts.items()}
    return out


class AllFloat64(torch.overrides.TorchFunctionMode):
    """Has code compute in float64 where it asks for float32, as transformers does for norms, softmaxes and delta rules."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if value is torch.float32 else value for value in args]
        kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return function(*args, **kwargs)


def with_float64(make, model):
    """What `make` makes of the model, and of a copy of it in float64."""
    made = make(model)
    model = copy.deepcopy(model).double()
    with AllFloat64():
        return made, make(model)


def assert_near(ours, theirs, exact, what, outputs=("loss", "logits", "hidden")):
    """Tensors by name, of which all but the outputs are gradients: ours are within 1e-5 of those computed in float64, or no further
    from them than four times as far as those of transformers in float32, which rounds as the processor does. Each tensor's scale is that
    of its largest number; a gradient's is no less than a hundredth of the largest of all gradients."""
    floor = 0.01 * max((value.abs().max().item() for name, value in exact.items() if name not in outputs), default=0.0)
    for name, right in exact.items():
        scale = max(right.abs().max().item(), 0.0 if name in outputs else floor)

        def off(tensors):
            return (tensors[name].reshape(right.shape) - right).abs().max().item() / scale
        allowed = max(1e-5, 4 * off(theirs))
        assert off(ours) <= allowed, f"{what}: {name} is {off(ours):.3g} off, where {allowed:.3g} is allowed"


def save_small_vision(out):
    """A DINOv2 of one layer for images of 28 x 28, the same each time, for decoders that are tried without images."""
    torch.manual_seed(1)
    Dinov2Model(Dinov2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)).save_pretrained(out)
