"""LatentWire in PyTorch: a byte encoder, poolers and an adapter before transformers' Llama, one sample at a time. Further decoders,
decoder2 and so on, read the same bytes and the same ids behind adapters of their own; the loss is the mean over all.

A batch holds source_bytes [all bytes] and source_lengths [B] (0: the sample has no source) in place of frames, and an id of -1
for each row of the latents. The contract of losses and gradients is that of fvlm_oracle.py; names of modules are those of the
files. In the modes fp16, int8, int6 and int4, which are inference, the latents are rounded as the wire does."""
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from fvlm_oracle import load_file, read_text, save_file
from torch import nn
from transformers import AutoModelForCausalLM

# Letters in shapes: B samples, N bytes, M latents, D encoder width, W decoder width.
LARGEST = {"int8": 127, "int6": 31, "int4": 7}
MODES = ("latents", "fp16", *LARGEST)


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
        """[B, N] -> [B, N, D]"""
        embedded = self.byte_emb(ids)
        positions = self.positions[: ids.shape[1]].to(embedded)
        return self.ln(self.encoder(embedded + positions, src_key_padding_mask=padding))


class Pooler(nn.Module):
    def __init__(self, width, latents, heads):
        super().__init__()
        self.latent = nn.Parameter(torch.randn(latents, width) / math.sqrt(width))
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.gate = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.ff = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, features, padding=None):
        """[B, N, D] -> [B, M, D]"""
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
        """[B, M, D] -> [B, M, W]"""
        gelu, x = nn.functional.gelu, self.input_norm(z)
        y = self.proj_out(gelu(self.mid(gelu(self.proj_in(x))))) + self.skip(x)
        y = self.out_norm(y * torch.sigmoid(self.film_scale(z)) + self.film_shift(z))
        return self.color(y) if hasattr(self, "color") else y


def decoder_name(index):
    return f"decoder{index + 1}" if index else "decoder"


class Latents(nn.Module):
    def __init__(self, width, decoder, latents, private, heads, color, further=()):
        super().__init__()
        self.shared_pooler = Pooler(width, latents, heads)
        widths = {decoder_name(i): one for i, one in enumerate([decoder, *further])}
        if private:
            self.private_poolers = nn.ModuleDict({name: Pooler(width, private, heads) for name in widths})
        self.adapter = nn.ModuleDict({name: Adapter(width, one, color) for name, one in widths.items()})

    def forward(self, features, rms, padding=None, mode="latents", name="decoder"):
        """[B, N, D] -> [B, M, W] of a decoder, each sample as loud as `rms`"""
        z = self.shared_pooler(features, padding)
        if hasattr(self, "private_poolers"):
            z = torch.cat([z, self.private_poolers[name](features, padding)], 1)
        y = self.adapter[name](sent(z, mode))
        return y * rms / y.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-6)


def sent(z, mode):
    """What arrives of latents that are sent in this mode."""
    if mode == "latents":
        return z
    if mode == "fp16":
        return z.half().to(z)
    groups = z.reshape(-1, 32)
    scale = (groups.abs().amax(1, keepdim=True) / LARGEST[mode]).half().to(z)
    scale[scale == 0] = 1
    return ((groups / scale).round().clamp(-LARGEST[mode], LARGEST[mode]) * scale).reshape(z.shape)


class LatentWire(nn.Module):
    def __init__(self, encoder, connector, *decoders):
        super().__init__()
        self.vision, self.connector = encoder, connector
        self.names = [decoder_name(i) for i in range(len(decoders))]
        for name, decoder in zip(self.names, decoders):
            setattr(self, name, decoder)
            decoder.model.embed_tokens.padding_idx = None
        self.eval()

    @classmethod
    def load(cls, folder, dtype=torch.float32, device="cpu"):
        folder = Path(folder)
        sizes = json.loads((folder / "vision" / "config.json").read_text())
        parts = json.loads((folder / "fvlm.json").read_text())["parts"]
        names = [part["name"] for part in parts if part["role"] == "decoder"]
        decoders = [AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32) for name in names]
        widths = [decoder.config.hidden_size for decoder in decoders]
        config = next(part["config"] for part in parts if part["role"] == "connector")
        encoder = ByteEncoder(*(sizes[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads",
                                                       "intermediate_size", "max_bytes")))
        connector = Latents(sizes["hidden_size"], widths[0], config["latents"], config["private_latents"], config["heads"],
                            config["color"], widths[1:])
        encoder.load_state_dict(load_file(folder / "vision" / "model.safetensors"))
        weights = load_file(folder / "connector.safetensors")
        connector.load_state_dict({name: weight for name, weight in weights.items() if not name.endswith(".scale")})
        model = cls(encoder, connector, *decoders)
        for parameter in model.parameters():  # Module.to(dtype) would round the rotary frequencies too
            parameter.data = parameter.data.to(dtype)
        return model.to(device)

    def save(self, folder):
        folder, layer = Path(folder), self.vision.encoder.layers[0]
        sizes = {"hidden_size": layer.linear1.in_features, "num_hidden_layers": len(self.vision.encoder.layers),
                 "num_attention_heads": layer.self_attn.num_heads, "intermediate_size": layer.linear1.out_features,
                 "max_bytes": len(self.vision.positions)}
        pooler, private = self.connector.shared_pooler, getattr(self.connector, "private_poolers", None)
        config = {"kind": "byte_latents", "latents": len(pooler.latent),
                  "private_latents": len(private["decoder"].latent) if private else 0, "heads": pooler.cross_attn.num_heads,
                  "color": hasattr(self.connector.adapter["decoder"], "color")}
        for name in self.names:
            getattr(self, name).save_pretrained(folder / name)
        (folder / "vision").mkdir(parents=True, exist_ok=True)
        (folder / "vision" / "config.json").write_text(json.dumps({"model_type": "bytes", **sizes}))
        save_file(self.vision.state_dict(), folder / "vision" / "model.safetensors")
        scales = {f"adapter.{name}.scale": torch.ones(1) for name in self.names}
        save_file(self.connector.state_dict() | scales, folder / "connector.safetensors")
        parts = [{"name": "vision", "role": "encoder", "folder": "vision", "model_type": "bytes"},
                 {"name": "connector", "role": "connector", "file": "connector.safetensors", "config": config},
                 *({"name": name, "role": "decoder", "folder": name, "model_type": getattr(self, name).config.model_type}
                   for name in self.names)]
        (folder / "fvlm.json").write_text(json.dumps({"format_version": 2, "parts": parts}, indent=2) + "\n")

    def named_gradients(self):
        for name, parameter in self.named_parameters():
            yield name.removeprefix("connector."), torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def latents(self, source, mode, name):
        """[N] -> [M, W]"""
        rms = getattr(self, name).model.embed_tokens.weight.detach().square().mean().sqrt()
        return self.connector(self.vision(source[None]), rms, mode=mode, name=name)[0]

    def embed(self, source, ids, mode, name="decoder"):
        """A source [N], which may be empty, and ids with a place for each of its latents, or none: then they stand before.
        -> the latents [M, W], decoder rows [S, W], and the ids of these with -1 for a latent."""
        table = getattr(self, name).model.embed_tokens
        if not len(source):
            return table.weight[:0], table(ids), ids
        latents = self.latents(source, mode, name)
        if (ids >= 0).all():
            ids = torch.cat([ids.new_full((len(latents),), -1), ids])
        return latents, table(ids.clamp(min=0)).masked_scatter(ids[:, None] < 0, latents), ids

    @torch.no_grad()
    def generate(self, source, prompt, limit, stop=(), mode="latents"):
        """Greedy decoding. -> new ids (including a stop id), the smallest lead of a chosen logit over the next best."""
        rows = self.embed(source, prompt, mode)[1]
        ids, lead = [], float("inf")
        while len(ids) < limit and not (ids and ids[-1] in stop):
            logits = self.decoder(inputs_embeds=rows[None]).logits[0, -1]
            best = logits.topk(2).values
            lead = min(lead, (best[0] - best[1]).item())
            ids.append(logits.argmax().item())
            rows = torch.cat([rows, self.decoder.model.embed_tokens(logits.argmax()[None])])
        return ids, lead


def cross_entropy(model, batch, mode):
    """-> every number of a trace; `loss` is differentiable."""
    out, losses = {}, []
    for name in model.names:
        of_decoder = decoder_cross_entropy(model, batch, mode, name)
        losses.append(of_decoder.pop("loss"))
        suffix = "" if name == "decoder" else "." + name
        out |= {key if key == "label_count" else key + suffix: tensor for key, tensor in of_decoder.items()}
    return out | {"loss": torch.stack(losses).mean()}


def decoder_cross_entropy(model, batch, mode, name):
    ids, mask, lengths = read_text(batch)
    sources = batch["source_bytes"].split(batch["source_lengths"].tolist())
    sums, counts, tokens, logits = [], [], [], []
    for source, text, is_label in zip(sources, ids.split(lengths), mask.split(lengths)):
        latents, rows, of_rows = model.embed(source, text, mode, name)
        row_logits = getattr(model, name)(inputs_embeds=rows[None]).logits[0]
        label = (of_rows >= 0).index_put(((of_rows >= 0).nonzero().squeeze(1),), is_label[text >= 0] != 0)
        label[: len(of_rows) - len(text) + 1] = False  # the text's first token
        losses = F.cross_entropy(row_logits[:-1][label[1:]], of_rows[label], reduction="sum")
        tokens.append(latents)
        logits.append(row_logits[of_rows >= 0].detach())
        sums.append(losses)
        counts.append(label.sum())
    sums, counts = torch.stack(sums), torch.stack(counts)
    return {"loss": sums.sum() / counts.sum().clamp(min=1), "loss_per_sample": sums / counts.clamp(min=1), "label_count": counts,
            "visual_tokens": torch.cat(tokens), "logits": torch.cat(logits)}


def reads_bytes(folder):
    described = json.loads((Path(folder) / "fvlm.json").read_text())
    return any(part.get("model_type") == "bytes" for part in described.get("parts", ()))
