"""Per-channel int8 fake quantisation and its gradient, and a linear layer over it: python oracle.py FOLDER.

Writes raw float32 files that quantizer_test.cpp reads. Row 3 of the weight is zero.
"""
import ctypes
import os
import sys

import torch

torch.set_num_threads(1)
folder = sys.argv[1]
rows, cols, tokens = 130, 257, 37


def write(name, tensor):
    with open(os.path.join(folder, name), "wb") as file:
        tensor = tensor.detach().float().contiguous()
        file.write(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))


generator = torch.Generator().manual_seed(1)
weight = torch.randn(rows, cols, generator=generator) * torch.logspace(-3, 2, rows)[:, None]
weight[3] = 0
weight.requires_grad_()
x = torch.randn(tokens, cols, generator=generator).requires_grad_()
bias = torch.randn(rows, generator=generator)
d_y = torch.randn(tokens, rows, generator=generator)

scale = weight.detach().abs().amax(1) / 127
safe_scale = torch.where(scale == 0, torch.ones_like(scale), scale)  # PyTorch divides by it
zero_point = torch.zeros(rows, dtype=torch.int32)
fake = torch.fake_quantize_per_channel_affine(weight, safe_scale, zero_point, 0, -127, 127)
y = torch.nn.functional.linear(x, fake, bias)
y.backward(d_y)

d_fake = torch.autograd.grad(  # what reaches the fake quantisation from behind
    torch.nn.functional.linear(x.detach(), f := fake.detach().requires_grad_(), bias), f, d_y
)[0]
for name, tensor in dict(
    weight=weight, scale=scale, fake=fake, d_fake=d_fake, d_weight=weight.grad, x=x, bias=bias, y=y, d_y=d_y, d_x=x.grad
).items():
    write(name + ".f32", tensor)
