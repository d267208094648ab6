"""release_checkpoints.py MODEL OUT: made-up release checkpoints, in every form they come in, of a model directory."""
import sys

import torch
from safetensors.torch import load_file

model, out = sys.argv[1:]
vision, decoder, connector = (load_file(f"{model}/{file}.safetensors") for file in ("vision/model", "decoder/model", "connector"))
llm = {"llm." + name: tensor for name, tensor in decoder.items()}
dino = {"encoder.dino." + name: tensor for name, tensor in vision.items()}
in_encoder = ("query_input_proj", "output_proj")
usual = dino | llm | {("encoder." if name.startswith(in_encoder) else "") + name: tensor for name, tensor in connector.items()}

torch.save(usual, f"{out}/plain.pt")
wrapped = {"module." + name: tensor for name, tensor in usual.items()}
torch.save({"model_state_dict": wrapped, "step": 7, "optimizer": {"lr": 1e-3}}, f"{out}/nested.pt")
renamed = {}
for name, tensor in (dino | llm | {"encoder." + name: tensor for name, tensor in connector.items()}).items():
    for old, new in (("attention.attention.query", "attention.q_proj"), ("attention.attention.key", "attention.k_proj"),
                     ("attention.attention.value", "attention.v_proj"), ("attention.output.dense", "attention.o_proj")):
        name = name.replace(old, new)
    renamed[name] = tensor
renamed["llm.lm_head.weight"] = renamed["llm.model.embed_tokens.weight"]
renamed["encoder.q_init"] = renamed["encoder.q_init"].reshape(-1)
torch.save({"model": renamed}, f"{out}/other_names.pt")

torch.save({name: tensor for name, tensor in usual.items() if name != "q_static"} |
           {"encoder.query_input_proj.bias": torch.zeros(8), "lora.a": torch.zeros(1)}, f"{out}/unknown.pt")
torch.save(usual | {"encoder.q_init": connector["q_init"] + 1}, f"{out}/contradiction.pt")
torch.save({name: tensor for name, tensor in usual.items() if "layer.1.norm2" not in name}, f"{out}/shallow_tower.pt")
