"""What tests beside transformers share: the program, a folder for their files, one thread and no progress bars. Exits with 77
(skipped) where the oracle's wheels are missing. The script's first argument is FVLM_ENGINE."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            env={**os.environ, "FVLM_CACHE": str(folder / "cache")})
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
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn_like(parameter) * (1.2 / parameter[0].numel() ** 0.5)
        else:
            parameter.data += 0.2 * torch.randn_like(parameter)


def save_small_vision(out):
    """A DINOv2 of one layer for images of 28 x 28, the same each time, for decoders that are tried without images."""
    torch.manual_seed(1)
    Dinov2Model(Dinov2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)).save_pretrained(out)
