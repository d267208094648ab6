"""GhostVis and SmolVLM in PyTorch on transformers' towers, for batches of samples of one size: an image and a text each.

The contract is that of fvlm_oracle.py: a sample's decoder sequence is [its visual tokens][its text], and each text token but
the first is a label where its mask is not 0. The names of modules are those of connector.safetensors."""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from fvlm_oracle import LlamaForCausalLM, load_file
from torch import nn
from transformers import CLIPVisionModel, NanoChatConfig, NanoChatForCausalLM, SiglipVisionModel
from transformers.models.llama.modeling_llama import LlamaMLP

# Letters in shapes: B samples, P tokens of an image, S text tokens, D tower width, W decoder width.


class ResamplerLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, tokens):
        x = x + self.cross_attn(self.norm1(x), tokens, tokens, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Perceiver(nn.Module):
    def __init__(self, config, tower, width):
        super().__init__()
        inner = config["projector_width"]
        self.vision_resampler, self.vision_projector = nn.Module(), nn.Module()
        self.vision_resampler.queries = nn.Parameter(torch.empty(1, config["queries"], tower))
        self.vision_resampler.layers = nn.ModuleList(ResamplerLayer(tower, config["heads"]) for _ in range(config["layers"]))
        self.vision_projector.mlp = nn.Sequential(
            nn.Linear(tower, inner), nn.GELU(), nn.Identity(), nn.Linear(inner, width), nn.LayerNorm(width))

    def forward(self, tokens):
        """[B, P, D] -> [B, queries, W]"""
        x = self.vision_resampler.queries.expand(len(tokens), -1, -1)
        for layer in self.vision_resampler.layers:
            x = layer(x, tokens)
        return self.vision_projector.mlp(x)


class PixelShuffle(nn.Module):
    def __init__(self, config, tower, width):
        super().__init__()
        self.factor = config["factor"]
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(tower * self.factor**2, width, bias=False)

    def forward(self, tokens):
        """[B, P, D] -> [B, P / factor^2, W]"""
        side, factor = round(tokens.shape[1] ** 0.5), self.factor
        squares = tokens.unflatten(1, (side // factor, factor, side // factor, factor)).transpose(2, 3)
        return self.modality_projection.proj(squares.flatten(3).flatten(1, 2).flatten(2))


CONNECTORS = {"perceiver": Perceiver, "pixel_shuffle": PixelShuffle}
ENCODERS = {"clip_vision_model": CLIPVisionModel, "siglip_vision_model": SiglipVisionModel}


def load_ghostvis(folder):
    """HF's nanochat with Llama's MLP, and without a bias of o_proj."""
    config = json.loads((folder / "config.json").read_text())
    model = NanoChatForCausalLM(NanoChatConfig(**{key: value for key, value in config.items() if key != "model_type"}))
    model.config.hidden_act, model.config.mlp_bias = "silu", False
    for layer in model.model.layers:
        out = layer.self_attn.o_proj
        layer.mlp, layer.self_attn.o_proj = LlamaMLP(model.config), nn.Linear(out.in_features, out.out_features, bias=False)
    model.load_state_dict({name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()})
    return model


class UniformVlm(nn.Module):
    def __init__(self, vision, connector, decoder):
        super().__init__()
        self.vision, self.connector, self.decoder = vision, connector, decoder
        self.softcap = getattr(decoder.config, "final_logit_softcapping", None)
        decoder.model.embed_tokens.padding_idx = None
        self.eval()

    @classmethod
    def load(cls, folder, dtype, device):
        folder = Path(folder)
        parts = {part["role"]: part for part in json.loads((folder / "fvlm.json").read_text())["parts"]}
        vision = ENCODERS[parts["encoder"]["model_type"]].from_pretrained(folder / "vision", dtype=torch.float32)
        is_llama = parts["decoder"]["model_type"] == "llama"
        decoder = (LlamaForCausalLM.from_pretrained(folder / "decoder", dtype=torch.float32) if is_llama
                   else load_ghostvis(folder / "decoder"))
        config = parts["connector"]["config"]
        connector = CONNECTORS[config["kind"]](config, vision.config.hidden_size, decoder.config.hidden_size)
        connector.load_state_dict(load_file(folder / "connector.safetensors"))
        model = cls(vision, connector, decoder)
        for parameter in model.parameters():  # Module.to(dtype) would round the rotary frequencies too
            parameter.data = parameter.data.to(dtype)
        return model.to(device)

    def visual(self, frames, samples):
        """-> [B, P, W]"""
        return self.connector(self.vision(frames).last_hidden_state)

    def hidden(self, rows):
        return self.decoder.model(inputs_embeds=rows, use_cache=False).last_hidden_state

    def forward(self, frames, ids, masks):
        """ids and masks [texts, B, S] -> the sum of each text's cross-entropies, [texts, B], in float32"""
        texts, samples, length = ids.shape
        visual = self.visual(frames, samples).repeat(texts, 1, 1)
        rows = torch.cat([visual, self.decoder.model.embed_tokens(ids.flatten(0, 1))], 1)
        logits = self.decoder.lm_head(self.hidden(rows)[:, -length:-1]).float()
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        losses = F.cross_entropy(logits.flatten(0, 1), ids[..., 1:].flatten(), reduction="none")
        return (losses.view(texts, samples, -1) * masks[..., 1:]).sum(-1)
