"""LatentWire's byte encoder, poolers and adapter against torch.nn: rows, every gradient, and how many parameters there are.

usage: bytes_test.py TOWER_PROBE CONNECTOR_PROBE; exit 77 where PyTorch is missing."""
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

tower_probe, connector_probe = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

torch.set_num_threads(1)
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)


class ByteEncoder(nn.Module):
    def __init__(self, width, layers, heads, mlp, max_bytes):
        super().__init__()
        self.byte_emb = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, heads, mlp, dropout=0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.ln = nn.LayerNorm(width)
        position = torch.arange(max_bytes).float()[:, None]
        angles = position * torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        self.positions = torch.stack([angles.sin(), angles.cos()], -1).reshape(max_bytes, width)

    def forward(self, ids, padding=None):
        return self.ln(self.encoder(self.byte_emb(ids) + self.positions[: ids.shape[1]], src_key_padding_mask=padding))


class Pooler(nn.Module):
    def __init__(self, width, latents, heads):
        super().__init__()
        self.latent = nn.Parameter(torch.randn(latents, width) / math.sqrt(width))
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.gate = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.ff = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, features, padding=None):
        q = self.latent.expand(features.shape[0], -1, -1)
        o = q + self.cross_attn(q, features, features, key_padding_mask=padding, need_weights=False)[0]
        g = torch.sigmoid(self.gate(o))
        o = g * o + (1 - g) * q
        return o + self.ff(o)


class Color(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, y):
        return (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True) * self.gamma + self.beta


class Adapter(nn.Module):
    def __init__(self, width, decoder, color):
        super().__init__()
        inner = 2 * width
        self.input_norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(decoder)
        self.proj_in, self.mid, self.proj_out = nn.Linear(width, inner), nn.Linear(inner, inner), nn.Linear(inner, decoder)
        self.skip, self.film_scale, self.film_shift = (nn.Linear(width, decoder) for _ in range(3))
        if color:
            self.color = Color(decoder)

    def forward(self, z):
        gelu, x = nn.functional.gelu, self.input_norm(z)
        y = self.proj_out(gelu(self.mid(gelu(self.proj_in(x))))) + self.skip(x)
        y = self.out_norm(y * torch.sigmoid(self.film_scale(z)) + self.film_shift(z))
        return self.color(y) if hasattr(self, "color") else y


class Latents(nn.Module):
    def __init__(self, width, decoder, latents, private, heads, color, embedding):
        super().__init__()
        self.shared_pooler = Pooler(width, latents, heads)
        if private:
            self.private_poolers = nn.ModuleDict({"decoder": Pooler(width, private, heads)})
        self.adapter = nn.ModuleDict({"decoder": Adapter(width, decoder, color)})
        self.rms = embedding.square().mean().sqrt()

    def forward(self, features, padding, sent=lambda z: z):
        z = self.shared_pooler(features, padding)
        if hasattr(self, "private_poolers"):
            z = torch.cat([z, self.private_poolers["decoder"](features, padding)], 1)
        y = self.adapter["decoder"](sent(z))
        return y * self.rms / y.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-6)


def padded(rows, lengths):
    """[all rows, ...] -> [texts, longest, ...], and which of its rows are padding."""
    parts = rows[: sum(lengths)].split(lengths)
    mask = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return nn.utils.rnn.pad_sequence(parts, batch_first=True), mask


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert result.returncode == 0, f"{command}\n{result.stderr}"


def sent(z, mode):
    if mode == "fp16":
        return z.half().float()
    largest = {"int8": 127, "int6": 31, "int4": 7}[mode]
    groups = z.reshape(-1, 32)
    scale = (groups.abs().amax(1, keepdim=True) / largest).half().float()
    scale[scale == 0] = 1
    return ((groups / scale).round().clamp(-largest, largest) * scale).reshape(z.shape)


class Bytes(unittest.TestCase):
    def compare(self, ours, expected, floor):
        for name, right in expected.items():
            off = (ours[name] - right).abs().max().item() / max(right.abs().max().item(), floor)
            self.assertLessEqual(off, 1e-5, name)

    def test_encoder_is_pytorchs_transformer_encoder_without_attention_to_padding(self):
        for sizes, lengths in (((32, 2, 4, 64, 20), [7, 1, 20]), ((64, 3, 2, 48, 9), [9, 9]), ((32, 1, 1, 16, 64), [33])):
            torch.manual_seed(7)
            module = ByteEncoder(*sizes)
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            width, layers, heads, mlp, max_bytes = sizes
            config = {"model_type": "bytes", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
                      "intermediate_size": mlp, "max_bytes": max_bytes}
            (folder / "config.json").write_text(json.dumps(config))
            save_file(module.state_dict(), folder / "model.safetensors")
            used, rows = sum(lengths), sum(lengths) + 5
            ids = torch.randint(0, 256, (rows,))
            texts, padding = padded(ids, lengths)
            hidden = module(texts, padding)[~padding]
            d_hidden = torch.randn(rows, width)
            d_hidden[used:] = 0  # as nobody reads padding
            hidden.backward(d_hidden[:used])
            save_file({"ids": ids, "lengths": torch.tensor(lengths), "d_hidden": d_hidden}, folder / "in.safetensors")
            run(tower_probe, "bytes", folder, folder / "in.safetensors", folder / "out.safetensors")
            ours = load_file(folder / "out.safetensors")
            ours["hidden"] = ours["hidden"][:used]
            expected = {name: parameter.grad for name, parameter in module.named_parameters()}
            floor = 0.01 * max(g.abs().max().item() for g in expected.values())
            self.compare(ours, expected | {"hidden": hidden.detach()}, floor)

    def test_latents_and_adapter_are_those_of_torch_nn(self):
        width, decoder, lengths = 32, 24, [5, 1, 12]
        for latents, private, heads, color in ((8, 0, 4, False), (3, 2, 8, False), (1, 0, 1, True), (2, 5, 2, True)):
            torch.manual_seed(8)
            embedding = 0.3 * torch.randn(50, decoder)
            module = Latents(width, decoder, latents, private, heads, color, embedding)
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            hidden = torch.randn(sum(lengths) + 4, width, requires_grad=True)
            rows = module(*padded(hidden, lengths))
            d_rows = torch.randn_like(rows)
            rows.backward(d_rows)
            save_file(module.state_dict() | {"adapter.decoder.scale": torch.ones(1)}, folder / "weights.safetensors")
            save_file({"hidden": hidden.detach(), "lengths": torch.tensor(lengths), "embedding": embedding,
                       "d_rows": d_rows.reshape(-1, decoder)}, folder / "in.safetensors")
            config = {"kind": "byte_latents", "latents": latents, "private_latents": private, "heads": heads, "color": color}
            run(connector_probe, json.dumps({"connector": config, "decoder_width": decoder}), folder / "weights.safetensors",
                folder / "in.safetensors", folder / "out.safetensors")
            expected = {name: parameter.grad for name, parameter in module.named_parameters()}
            floor = 0.01 * max(g.abs().max().item() for g in expected.values())
            expected |= {"rows": rows.detach().reshape(-1, decoder), "d_hidden": hidden.grad}
            self.compare(load_file(folder / "out.safetensors"), expected, floor)

    def test_latents_on_the_wire_are_rounded_in_groups_of_32(self):
        width, decoder, lengths = 32, 24, [6, 3]
        torch.manual_seed(9)
        embedding = torch.randn(50, decoder)
        module = Latents(width, decoder, 4, 0, 4, False, embedding)
        hidden = torch.randn(sum(lengths), width)
        save_file(module.state_dict() | {"adapter.decoder.scale": torch.ones(1)}, folder / "weights.safetensors")
        save_file({"hidden": hidden, "lengths": torch.tensor(lengths), "embedding": embedding, "d_rows": torch.zeros(8, decoder)},
                  folder / "in.safetensors")
        config = {"kind": "byte_latents", "latents": 4, "private_latents": 0, "heads": 4, "color": False}
        whole = module(*padded(hidden, lengths)).detach()
        last = 0.0
        for mode in ("fp16", "int8", "int6", "int4"):
            run(connector_probe, json.dumps({"connector": config, "decoder_width": decoder, "mode": mode}),
                folder / "weights.safetensors", folder / "in.safetensors", folder / "out.safetensors")
            rows = load_file(folder / "out.safetensors")["rows"]
            right = module(*padded(hidden, lengths), lambda z: sent(z, mode)).detach()
            self.compare({"rows": rows}, {"rows": right.reshape(-1, decoder)}, 0)
            off = (right - whole).abs().mean().item()
            self.assertGreater(off, last)
            last = off

    def test_there_are_as_many_parameters_as_in_the_public_code(self):
        count = lambda module: sum(parameter.numel() for parameter in module.parameters())
        encoder = ByteEncoder(256, 6, 8, 1024, 512)
        self.assertEqual(count(encoder) + count(Pooler(256, 8, 8)), 5_399_552)
        self.assertEqual(count(Adapter(256, 4096, False)) + 1, 5_662_209)


if __name__ == "__main__":
    unittest.main()
