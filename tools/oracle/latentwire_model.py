"""LatentWire in PyTorch on transformers' Llama, for batches of questions of one size.

A byte encoder, a pooler and an adapter turn a text's bytes into a few rows, behind which the decoder reads an answer. The loss
is cross-entropy of all of the answer's tokens, half that of the first and half that of the first 4, and the divergence of the
first 4 from the same decoder reading a prompt in place of the rows. The names of modules are those of the model's files."""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from fvlm_oracle import LlamaForCausalLM, load_file
from torch import nn

FIRST, TAU = 4, 2.0

# Letters in shapes: B samples, N bytes, M latents, D encoder width, W decoder width, A tokens of the answer.


class ByteEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["hidden_size"]
        self.byte_emb = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, config["num_attention_heads"], config["intermediate_size"], dropout=0,
                                           activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, config["num_hidden_layers"], enable_nested_tensor=False)
        self.ln = nn.LayerNorm(width)
        angles = torch.arange(config["max_bytes"])[:, None] * 1e4 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1), persistent=False)

    def forward(self, sources):
        """Bytes [B, N] -> [B, N, D]"""
        embedded = self.byte_emb(sources)
        return self.ln(self.encoder(embedded + self.positions[: sources.shape[1]].to(embedded.dtype)))


class Pooler(nn.Module):
    def __init__(self, width, latents, heads):
        super().__init__()
        self.latent = nn.Parameter(torch.empty(latents, width))
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.gate = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.ff = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, features):
        """[B, N, D] -> [B, M, D]"""
        query = self.latent.expand(len(features), -1, -1)
        read = query + self.cross_attn(query, features, features, need_weights=False)[0]
        gate = torch.sigmoid(self.gate(read))
        read = gate * read + (1 - gate) * query
        return read + self.ff(read)


class Adapter(nn.Module):
    def __init__(self, width, decoder_width):
        super().__init__()
        inner = 2 * width
        self.input_norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(decoder_width)
        self.proj_in, self.mid, self.proj_out = nn.Linear(width, inner), nn.Linear(inner, inner), nn.Linear(inner, decoder_width)
        self.skip, self.film_scale, self.film_shift = (nn.Linear(width, decoder_width) for _ in range(3))

    def forward(self, latents, rms):
        """[B, M, D] -> [B, M, W], each sample with the root mean square `rms`"""
        x = self.input_norm(latents)
        y = self.proj_out(F.gelu(self.mid(F.gelu(self.proj_in(x))))) + self.skip(x)
        y = self.out_norm(y * torch.sigmoid(self.film_scale(latents)) + self.film_shift(latents))
        return y * (rms / y.float().square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-6)).to(y.dtype)


class ByteLatents(nn.Module):
    def __init__(self, config, width, decoder_width):
        super().__init__()
        self.shared_pooler = Pooler(width, config["latents"], config["heads"])
        self.adapter = nn.ModuleDict({"decoder": Adapter(width, decoder_width)})

    def forward(self, features, rms):
        return self.adapter["decoder"](self.shared_pooler(features), rms)


class LatentWire(nn.Module):
    def __init__(self, vision, connector, decoder):
        super().__init__()
        self.vision, self.connector, self.decoder = vision, connector, decoder
        self.register_buffer("rms", decoder.model.embed_tokens.weight.detach().float().square().mean().sqrt())

    @classmethod
    def load(cls, folder, dtype, device):
        folder = Path(folder)
        config = next(part["config"] for part in json.loads((folder / "fvlm.json").read_text())["parts"]
                      if part["role"] == "connector")
        vision = ByteEncoder(json.loads((folder / "vision" / "config.json").read_text()))
        vision.load_state_dict({name: tensor for path in (folder / "vision").glob("*.safetensors")
                                for name, tensor in load_file(path).items()})
        decoder = LlamaForCausalLM.from_pretrained(folder / "decoder", dtype=torch.float32)
        connector = ByteLatents(config, vision.ln.normalized_shape[0], decoder.config.hidden_size)
        weights = load_file(folder / "connector.safetensors")
        weights.pop("adapter.decoder.scale", None)  # 1, which the calibration cancels
        connector.load_state_dict(weights)
        model = cls(vision, connector, decoder)
        for parameter in model.parameters():  # Module.to(dtype) would round the rotary frequencies too
            parameter.data = parameter.data.to(dtype)
        return model.to(device)

    @staticmethod
    def inputs(batch, device):
        """What forward() takes, of a batch file: bytes [B, N]; token ids of the teacher's prompts, of the first tokens, of the
        anchors behind the latents, and of the answers"""
        samples = len(batch["frame_counts"])
        ids, masks, teacher = (batch[name].view(samples, -1) for name in ("input_ids", "loss_mask", "teacher_input_ids"))
        answer, latents = int(masks[0].sum()), int((ids[0] < 0).sum())
        whole = (batch["bytes"].view(samples, -1), teacher[:, :-answer], ids[:, :1], ids[:, 1 + latents : -answer],
                 ids[:, -answer:])
        return [each.to(device).contiguous() for each in whole]

    def logits(self, before, answers, count):
        """Of the first `count` tokens of the answers, behind the rows `before` [B, rows, W]: [B, count, vocabulary], float32"""
        rows = torch.cat([before, self.decoder.model.embed_tokens(answers[:, : count - 1])], 1)
        hidden = self.decoder.model(inputs_embeds=rows, use_cache=False).last_hidden_state
        return self.decoder.lm_head(hidden[:, -count:]).float()

    def forward(self, sources, prompts, starts, anchors, answers):
        """-> the loss, a mean over the batch"""
        embed = self.decoder.model.embed_tokens
        with torch.no_grad():
            teacher = F.log_softmax(self.logits(embed(prompts), answers, FIRST) / TAU, -1)
        latents = self.connector(self.vision(sources), self.rms)
        logits = self.logits(torch.cat([embed(starts), latents, embed(anchors)], 1), answers, answers.shape[1])
        losses = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="none").view_as(answers)
        student = F.log_softmax(logits[:, :FIRST] / TAU, -1)
        kl = (teacher.exp() * (teacher - student)).sum(-1).mean() * TAU**2
        return losses.mean() + 0.5 * losses[:, 0].mean() + 0.5 * losses[:, :FIRST].mean() + kl
