"""Tiny Hugging Face folders whose weights are quantized in the forms that others publish, and the numbers that their codes stand for.
GPTQ and AWQ are packed here from what they are said to be: words of 32 bits, from the lowest bits on."""
import json
import shutil

import torch
from safetensors.torch import load_file, save_file

E4M3 = torch.float8_e4m3fn
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of 8 neighbouring outputs each 4 bits of a word are


def spread(scales, shape, block):
    """The scale of each number, of blocks of which the last ones may be cut off."""
    return scales.repeat_interleave(block[0], 0)[:shape[0]].repeat_interleave(block[1], 1)[:, :shape[1]]


def grid_of(shape, block):
    return [-(-size // each) for size, each in zip(shape, block)]


def drawn(shape, generator, dtype=torch.float32):
    return (torch.rand(shape, generator=generator) * 0.02 + 0.001).to(dtype)


def e4m3(weight, block, scales, suffix):
    """{what stands behind a module's name: tensor}, and the numbers."""
    full = spread(scales.float().reshape(grid_of(weight.shape, block)), weight.shape, block)
    codes = (weight / full).clamp(-448, 448).to(E4M3)
    return {".weight": codes, suffix: scales}, codes.float() * full


def int8(weight, block, scales, zeros=None):
    full = spread(scales.reshape(grid_of(weight.shape, block)), weight.shape, block)
    shift = torch.zeros_like(full) if zeros is None else spread(zeros.reshape(scales.shape).float(), weight.shape, block)
    codes = (weight / full + shift).round().clamp(-128, 127)
    extra = {} if zeros is None else {".weight_zero_point": zeros}
    return {".weight": codes.to(torch.int8), ".weight_scale": scales} | extra, (codes - shift) * full


def pack(codes, bits, order=None):
    """Of each row, codes side by side in words."""
    each = 32 // bits
    parts = codes.long().unflatten(1, (-1, each))[:, :, order or list(range(each))]
    words = (parts << (bits * torch.arange(each))).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def of_groups(weight, bits, group, generator, act_order=False):
    """Codes [out, in], scales and zeros [groups, out], the group of each input, and the numbers."""
    outputs, inputs = weight.shape
    groups = -(-inputs // group)
    scales = drawn((groups, outputs), generator, torch.float16) * (16 if bits == 4 else 1)
    zeros = torch.randint(1, 1 << bits, (groups, outputs), generator=generator)
    group_of = torch.arange(inputs) // group
    if act_order:
        group_of = group_of[torch.randperm(inputs, generator=generator)]
    scale, zero = scales.float()[group_of].T, zeros[group_of].T
    codes = (weight / scale + zero).round().clamp(0, (1 << bits) - 1).long()
    return codes, scales, zeros, group_of, (codes - zero) * scale


def gptq(weight, bits, group, generator, act_order=False, offset=1, with_index=True):
    codes, scales, zeros, group_of, numbers = of_groups(weight, bits, group, generator, act_order)
    tensors = {".qweight": pack(codes, bits).T.contiguous(), ".qzeros": pack((zeros - offset) & ((1 << bits) - 1), bits), ".scales": scales}
    return tensors | ({".g_idx": group_of.to(torch.int32)} if with_index else {}), numbers


def awq(weight, group, generator):
    codes, scales, zeros, _, numbers = of_groups(weight, 4, group, generator)
    return {".qweight": pack(codes.T, 4, AWQ_ORDER), ".qzeros": pack(zeros, 4, AWQ_ORDER), ".scales": scales}, numbers


def nibbles(weight, kind, generator, nested):
    """bitsandbytes' codes of 4 bits, of a table that is drawn: what they stand for, their files say."""
    block, nested_block, offset = 64, 16, 0.25
    table = torch.cat([torch.rand(15, generator=generator) * 2 - 1, torch.ones(1)]).sort().values
    blocks = weight.flatten().unflatten(0, (-1, block))
    largest = blocks.abs().amax(1)
    extra = {}
    if nested:
        outer = torch.rand(-(-len(largest) // nested_block), generator=generator) + 1
        inner = torch.rand(256, generator=generator)
        codes = torch.randint(0, 256, largest.shape, generator=generator)
        largest = inner[codes] * outer.repeat_interleave(nested_block)[:len(largest)] + offset
        extra = {".weight.absmax": codes.to(torch.uint8), ".weight.nested_absmax": outer, ".weight.nested_quant_map": inner}
    codes = (blocks[:, :, None] / largest[:, None, None] - table).abs().argmin(2)
    pairs = codes.reshape(-1, 2)
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(weight.shape)} | (
        {"nested_blocksize": nested_block, "nested_dtype": "float32", "nested_offset": offset} if nested else {})
    return {".weight": (pairs[:, :1] * 16 + pairs[:, 1:]).to(torch.uint8), ".weight.absmax": largest, ".weight.quant_map": table,
            f".weight.quant_state.bitsandbytes__{kind}": torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)} | extra, (
                table[codes] * largest[:, None]).reshape(weight.shape)


def rows_of_bitsandbytes(weight, _):
    largest = weight.abs().amax(1)
    codes = (weight * (127 / largest[:, None])).round().to(torch.int8)
    return {".weight": codes, ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)}, codes * largest[:, None] * (
        torch.tensor(1.0) / 127)


def with_bias_of_zeros(made):
    """As GPTQ's files have it of every linear."""
    tensors, numbers = made
    return tensors | {".bias": torch.zeros(len(numbers), dtype=torch.float16)}, numbers


def compressed(kind, **weights):
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": False} | weights}
    return {"quant_method": "compressed-tensors", "format": f"{kind}-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None, "transform_config": {}, "sparsity_config": {}}


def fp8(block, scheme="dynamic"):
    return {"quant_method": "fp8", "activation_scheme": scheme, "dequantize": False, "weight_block_size": block,
            "modules_to_not_convert": ["lm_head"]}


def of_tensor(weight, generator):
    """As Ministral 3 has it."""
    tensors, numbers = e4m3(weight, weight.shape, drawn((), generator, torch.bfloat16), ".weight_scale_inv")
    return tensors | {".activation_scale": torch.tensor(0.5, dtype=torch.bfloat16)}, numbers


def of_blocks(block, suffix=".weight_scale_inv"):
    return lambda weight, generator: e4m3(weight, block, drawn(grid_of(weight.shape, block), generator), suffix)


def with_zeros(weight, generator):
    zeros = torch.randint(-20, 21, (len(weight), 1), generator=generator).to(torch.int8)
    return int8(weight, (1, weight.shape[1]), drawn((len(weight), 1), generator), zeros)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False, "lm_head": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm", "modules_to_not_convert": None}
BITS4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
         "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": ["lm_head"]}
# quantization_config, and what makes the tensors of a weight, and its numbers.
FORMS = {
    "fp8-tensor": (fp8(None, "static"), of_tensor),
    "fp8-blocks": (fp8([8, 16]), of_blocks((8, 16))),
    "fp8-partial": (fp8([20, 32]), of_blocks((20, 32))),
    "float-tensor": (compressed("float", strategy="tensor"),
                     lambda weight, generator: e4m3(weight, weight.shape, drawn((1,), generator), ".weight_scale")),
    "float-channel": (compressed("float", strategy="channel"),
                      lambda weight, generator: e4m3(weight, (1, weight.shape[1]), drawn((len(weight), 1), generator), ".weight_scale")),
    "float-block": (compressed("float", strategy="block", block_structure=[8, 16]), of_blocks((8, 16), ".weight_scale")),
    "int-channel": (compressed("int", strategy="channel"),
                    lambda weight, generator: int8(weight, (1, weight.shape[1]), drawn((len(weight), 1), generator))),
    "int-group": (compressed("int", strategy="group", group_size=16),
                  lambda weight, generator: int8(weight, (1, 16), drawn((len(weight), weight.shape[1] // 16), generator))),
    "int-zeros": (compressed("int", strategy="channel", symmetric=False), with_zeros),
    "gptq": (GPTQ, lambda weight, generator: gptq(weight, 4, 16, generator)),
    "gptq-8": (GPTQ | {"bits": 8}, lambda weight, generator: gptq(weight, 8, 16, generator, with_index=False)),
    "gptq-biases": (GPTQ, lambda weight, generator: with_bias_of_zeros(gptq(weight, 4, 16, generator))),
    "gptq-row": (GPTQ | {"group_size": -1}, lambda weight, generator: gptq(weight, 4, weight.shape[1], generator)),
    "gptq-order": (GPTQ | {"desc_act": True}, lambda weight, generator: gptq(weight, 4, 16, generator, act_order=True)),
    "gptq-v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, lambda weight, generator: gptq(weight, 4, 16, generator, offset=0)),
    "gptq-v2-today": (GPTQ | {"format": "gptq_v2"}, lambda weight, generator: gptq(weight, 4, 16, generator, offset=0)),
    "awq": (AWQ, lambda weight, generator: awq(weight, 16, generator)),
    "nf4": (BITS4, lambda weight, generator: nibbles(weight, "nf4", generator, nested=False)),
    "nf4-nested": (BITS4 | {"bnb_4bit_use_double_quant": True}, lambda weight, generator: nibbles(weight, "nf4", generator, nested=True)),
    "fp4": (BITS4 | {"bnb_4bit_quant_type": "fp4"}, lambda weight, generator: nibbles(weight, "fp4", generator, nested=False)),
    "bitsandbytes-8": (BITS4 | {"load_in_4bit": False, "load_in_8bit": True}, rows_of_bitsandbytes),
}


def quantize_folder(source, target, form, is_quantized):
    """A copy of a folder with some of its weights in this form. Returns all numbers, by name."""
    shutil.copytree(source, target)
    quantization, make = FORMS[form]
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    generator = torch.Generator().manual_seed(7)
    stored, numbers = {}, {}
    for name, weight in load_file(source / "model.safetensors").items():
        if not is_quantized(name, weight):
            stored[name] = numbers[name] = weight
            continue
        module = name.removesuffix(".weight")
        tensors, numbers[name] = make(weight, generator)
        stored |= {module + suffix: tensor.contiguous() for suffix, tensor in tensors.items()}
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    return numbers
