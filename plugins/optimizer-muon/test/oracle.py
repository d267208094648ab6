"""torch.optim.Muon over 50 steps: python oracle.py FOLDER. Writes raw files that muon_test.cpp reads.

PyTorch's own Newton-Schulz rounds to bfloat16 after every product. It runs three times: as it is ("bfloat16"), with the
columns of what it is given in another order, which changes nothing but the order of its sums ("reordered"), and from the
same source with its one cast taken out ("float32"), so that the rest can be compared to the last digits.
"""
import ctypes
import inspect
import os
import sys

import torch
import torch.optim._muon as muon

torch.set_num_threads(1)  # small matrices: threads that wait for each other take a hundred times as long
folder = sys.argv[1]
shapes = [(33, 65), (128, 48), (96, 96), (5, 1), (200, 7), (64, 130)]
groups = [  # muon_test.cpp has the same
    dict(lr=1e-3, momentum=0.95, nesterov=True, weight_decay=0.1, eps=1e-7),
    dict(lr=1e-3, momentum=0.9, nesterov=False, weight_decay=0.0, eps=1e-7, adjust_lr_fn="match_rms_adamw"),
]
steps = 50

source = inspect.getsource(muon._zeropower_via_newtonschulz)
assert source.count("grad.bfloat16()") == 1, "torch.optim.Muon changed"
namespace = dict(muon.__dict__)
exec(source.replace("grad.bfloat16()", "grad.float().clone()"), namespace)
in_float32, in_bfloat16 = namespace["_zeropower_via_newtonschulz"], muon._zeropower_via_newtonschulz


def reordered(gradient, *options):
    wide = gradient.size(0) <= gradient.size(1)
    order = torch.randperm(max(gradient.shape), generator=torch.Generator().manual_seed(2))
    back = torch.argsort(order)
    if wide:
        return in_bfloat16(gradient[:, order], *options)[:, back]
    return in_bfloat16(gradient[order], *options)[back]


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def write(name, tensor):
    with open(os.path.join(folder, name), "wb") as file:
        tensor = tensor.contiguous()
        file.write(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))


generator = torch.Generator().manual_seed(1)
start = [torch.randn(shape, generator=generator) for shape in shapes]
gradients = [torch.randn((steps,) + shape, generator=generator) * 10.0 ** (i - 3) for i, shape in enumerate(shapes)]
write("start.f32", flat(start))
write("gradients.f32", torch.stack([flat([g[t] for g in gradients]) for t in range(steps)]))

for name, newton_schulz in dict(float32=in_float32, bfloat16=in_bfloat16, reordered=reordered).items():
    muon._zeropower_via_newtonschulz = newton_schulz
    parameters = [tensor.clone().requires_grad_() for tensor in start]
    optimizer = torch.optim.Muon([dict(params=parameters[:3], **groups[0]), dict(params=parameters[3:], **groups[1])])
    history = []
    for t in range(steps):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient[t].clone()
        optimizer.step()
        history.append(flat(parameters))
    write(name + ".f32", torch.stack(history))
    write("momentum.f32", flat([optimizer.state[p]["momentum_buffer"] for p in parameters]))
