"""Runs torch.optim.AdamW or torch.optim.Muon and writes what went in and what came out.

usage: optimizer_oracle.py adamw|muon STEPS OUT ROWSxCOLS[:name=value,...] ...

A matrix is one parameter; rows of 1 make a vector. OUT holds float32: all parameters, then for each step all gradients,
then all parameters after the last step. Hyperparameters are rounded to float32, as the engine holds them.
"""
import sys

import torch

torch.manual_seed(1)
algorithm, steps, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
names = {"adamw": ("lr", "eps", "weight_decay"), "muon": ("lr", "momentum", "weight_decay", "eps")}[algorithm]


def float32(text):
    return torch.tensor(float(text), dtype=torch.float32).item()


groups = []
for argument in sys.argv[4:]:
    shape, _, hyper = argument.partition(":")
    rows, cols = map(int, shape.split("x"))
    given = dict(pair.split("=") for pair in hyper.split(",") if pair)
    options = {name: float32(given[name]) for name in names if name in given}
    if "beta1" in given:
        options["betas"] = (float32(given["beta1"]), float32(given["beta2"]))
    if "nesterov" in given:
        options["nesterov"] = given["nesterov"] == "1"
    parameter = torch.randn(rows, cols) if rows > 1 else torch.randn(cols)
    groups.append({"params": [torch.nn.Parameter(parameter)], **options})

parameters = [group["params"][0] for group in groups]
optimizer = {"adamw": torch.optim.AdamW, "muon": torch.optim.Muon}[algorithm](groups)


def write(file, tensors):
    for tensor in tensors:
        file.write(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()))


with open(out, "wb") as file:
    write(file, parameters)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter) * torch.rand(()) + 0.1
        write(file, [parameter.grad for parameter in parameters])
        optimizer.step()
    write(file, parameters)
