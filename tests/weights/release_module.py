"""release_module.py MODEL OUT: the model directory as a module built as fVLM's releases are, of transformers' towers, and
the files that such a module, its training and its publication leave."""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_model
from torch import nn
from transformers import Dinov2Model, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
model, out = map(pathlib.Path, sys.argv[1:])
connector = load_file(model / "connector.safetensors")


class Encoder(nn.Module):
    def __init__(self, width, query_dim):
        super().__init__()
        self.dino = Dinov2Model.from_pretrained(model / "vision")
        self.query_input_proj = nn.Linear(query_dim, width, bias=False)
        self.output_proj = nn.Linear(width, width)
        self.register_buffer("_device_probe", torch.zeros(1), persistent=False)


class Foveated(nn.Module):
    def __init__(self):
        super().__init__()
        width, query_dim = connector["query_input_proj.weight"].shape
        self.encoder = Encoder(width, query_dim)
        self.llm = LlamaForCausalLM.from_pretrained(model / "decoder")
        self.dino_to_llm = nn.Linear(width, self.llm.config.hidden_size)
        self.llm_to_query = nn.Linear(self.llm.config.hidden_size, query_dim)
        self.q_static = nn.Parameter(torch.zeros(1, query_dim))
        self.q_init = nn.Parameter(torch.zeros(1, query_dim))
        own = dict(self.named_parameters())
        for name, tensor in connector.items():
            own.get(name, own.get(f"encoder.{name}")).data.copy_(tensor)


module = Foveated()
module.encoder.dino = module.encoder.dino.to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(module.parameters(), lr=0.0, weight_decay=0.0)
for parameter in module.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def training(**settings):
    return {"model_state_dict": module.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
            "scaler_state_dict": {}, "scheduler_state_dict": scheduler.state_dict(), "step": 2000,
            "data_position": 64000, "metric_value": 1.53, "timestamp": "2026-01-01T00:00:00",
            "config": {"stage": 3, "model": {"query_dim": 6, "visual_scale": 0.25} | settings, "data": {"shards": ["a.tar"]}}}


torch.save(module.state_dict(), out / "released.pt")
torch.save(module.state_dict(), out / "torch.safetensors")  # as the model cards read it: with torch.load
save_model(module, str(out / "published.safetensors"))
torch.save(training(), out / "training.pt")
torch.save(training(), out / "old_format.pt", _use_new_zipfile_serialization=False)

torch.save(training(deep_query=False), out / "ablation.pt")
torch.save(module, out / "pickled.pt")
(out / "damaged.pt").write_bytes((out / "released.pt").read_bytes()[:5000])
(out / "page.pt").write_text("<html>not found</html>")
torch.save({"optimizer_state_dict": optimizer.state_dict(), "step": 3}, out / "optimizer.pt")

module.llm = torch.compile(module.llm)
torch.save(nn.DataParallel(module).state_dict(), out / "compiled.pt")
module.llm = module.llm.to(torch.bfloat16)
torch.save(module.state_dict(), out / "mixed.pt")
