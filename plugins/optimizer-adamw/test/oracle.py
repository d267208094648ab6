"""torch.optim.AdamW over 50 steps: python oracle.py FOLDER. Writes raw float32 files that adamw_test.cpp reads."""
import ctypes
import os
import sys

import torch

torch.set_num_threads(1)
folder = sys.argv[1]
shapes = [(7,), (33, 65), (1,), (128, 48), (31,)]
groups = [  # adamw_test.cpp has the same
    dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
    dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
]
steps = 50


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def write(name, tensor):
    with open(os.path.join(folder, name), "wb") as file:
        tensor = tensor.contiguous()
        file.write(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))


generator = torch.Generator().manual_seed(1)
parameters = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
gradients = [torch.randn((steps,) + shape, generator=generator) * 10.0 ** (i - 3) for i, shape in enumerate(shapes)]
write("start.f32", flat(parameters))
write("gradients.f32", torch.stack([flat([g[t] for g in gradients]) for t in range(steps)]))

optimizer = torch.optim.AdamW(
    [dict(params=parameters[:3], **groups[0]), dict(params=parameters[3:], **groups[1])], foreach=False
)
history = []
for t in range(steps):
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient[t].clone()
    optimizer.step()
    history.append(flat(parameters))
write("parameters.f32", torch.stack(history))
write("m.f32", flat([optimizer.state[p]["exp_avg"] for p in parameters]))
write("v.f32", flat([optimizer.state[p]["exp_avg_sq"] for p in parameters]))
