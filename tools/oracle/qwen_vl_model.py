"""Qwen2-VL and Qwen2.5-VL in PyTorch on transformers' modules, for batches of samples of one size: an image and a text each, all images of
one grid of cells. transformers' own encoder goes through its segments one by one, and asks the device for their lengths; here all of
them, which are equally long, are one dense tensor, so that a step can be captured."""
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from fvlm_oracle import load_file
from image_models import UniformVlm
from torch import nn
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLTextModel
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig, Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import (Qwen2VisionTransformerPretrainedModel, Qwen2VLPreTrainedModel, Qwen2VLTextModel,
                                                            apply_rotary_pos_emb_vision)
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

# Letters in shapes: B samples, C cells of an image, P patches of it, S text tokens, N windows of L patches, D tower width, W decoder width.
FAMILIES = {
    "qwen2_vl_vision": (Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig, Qwen2VLTextModel, Qwen2VLTextConfig),
    "qwen2_5_vl_vision": (Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig, Qwen2_5_VLTextModel, Qwen2_5_VLTextConfig),
}


class Decoder(Qwen2VLPreTrainedModel):
    def __init__(self, model):
        super().__init__(model.config)
        self.model, self.lm_head = model, nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False)
        if model.config.tie_word_embeddings:
            self.lm_head.weight = model.embed_tokens.weight


class UniformQwenVl(UniformVlm):
    def __init__(self, vision, decoder):
        connector, vision.merger = vision.merger, nn.Identity()
        super().__init__(vision, connector, decoder)
        self.whole = getattr(vision, "fullatt_block_indexes", range(len(vision.blocks)))
        self.grid = None

    @classmethod
    def load(cls, folder, dtype, device):
        folder = Path(folder)
        configs = [json.loads((folder / part / "config.json").read_text()) for part in ("vision", "decoder")]
        make_vision, make_vision_config, make_text, make_text_config = FAMILIES[configs[0]["model_type"]]
        vision = make_vision._from_config(make_vision_config(**configs[0]), dtype=torch.float32)
        no_tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
        decoder = Decoder(make_text._from_config(make_text_config(**configs[1] | no_tokens), dtype=torch.float32))
        vision.merger.load_state_dict(load_file(folder / "connector.safetensors"))
        model = cls(vision, decoder)
        for part, of_part in (("vision", vision), ("decoder", decoder)):
            tensors = {name: tensor for path in (folder / part).glob("*.safetensors") for name, tensor in load_file(path).items()}
            missing, unknown = of_part.load_state_dict(tensors, strict=False)
            if unknown or set(missing) - {"lm_head.weight"}:
                raise ValueError(f"{folder / part} lacks {missing} and has {unknown}")
        for parameter in model.parameters():  # Module.to(dtype) would round the rotary frequencies too
            parameter.data = parameter.data.to(dtype)
        return model.to(device)

    def inputs(self, batch, dtype, device):
        """[B * P, features] as transformers' image processor makes them, of cells; and takes the grid of all images."""
        grids = {tuple(grid) for grid in batch["image_grids"].tolist()}
        if len(grids) != 1 or set(batch["image_counts"].tolist()) != {1} or self.grid not in (None, *grids):
            sys.exit(f"train-step: image_grids {sorted(grids)}: each sample needs one image, all of the same grid")
        if self.grid is None:
            self.grid, = grids
            self.prepare(device)
        merge, patch, times = (getattr(self.vision.config, name) for name in ("spatial_merge_size", "patch_size", "temporal_patch_size"))
        patches = batch["frames"].unflatten(2, (merge, patch)).unflatten(4, (merge, patch)).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
        return patches.unsqueeze(2).expand(-1, -1, times, -1, -1).flatten(1).to(device, dtype)

    def prepare(self, device):
        """What depends on the grid alone."""
        merge, (rows, columns) = self.vision.spatial_merge_size, self.grid
        image = torch.tensor([[1, rows * merge, columns * merge]])
        places = get_vision_position_ids(image, merge)
        order, self.windows = torch.arange(rows * columns), 1
        if hasattr(self.vision, "window_size"):
            order, ends = get_vision_window_index(image, merge, self.vision.window_size, self.vision.patch_size)
            if len(ends.diff().unique()) > 1:
                sys.exit(f"train-step: an image of {rows} x {columns} cells has windows of several sizes")
            self.windows = len(ends) - 1
        self.order, self.back = order.to(device), order.argsort().to(device)
        places = places.unflatten(0, (rows * columns, -1))[order].flatten(0, 1).to(device)
        with torch.no_grad():
            self.cos, self.sin = self.vision.rotary_pos_emb(places.float(), places)  # [P, head_dim]
        cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        self.visual_positions = torch.cat([torch.zeros(1, rows * columns, dtype=torch.long), cells.T]).to(device)  # [3, C]

    def attend(self, attention, x, windows):
        """[B, P, D] -> [B, P, D], where each of the windows of an image sees itself"""
        q, k, v = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
        q, k = apply_rotary_pos_emb_vision(q, k, self.cos, self.sin)
        q, k, v = (each.unflatten(1, (windows, -1)).flatten(0, 1).transpose(1, 2) for each in (q, k, v))  # [B * N, heads, L, head_dim]
        return attention.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))

    def visual(self, pixels, samples):
        """[B * P, features] -> [B, C, W]"""
        embedded = F.linear(pixels, self.vision.patch_embed.proj.weight.flatten(1))
        x = embedded.unflatten(0, (samples, len(self.order), -1))[:, self.order].flatten(1, 2)
        for index, block in enumerate(self.vision.blocks):
            x = x + self.attend(block.attn, block.norm1(x), 1 if index in self.whole else self.windows)
            x = x + block.mlp(block.norm2(x))
        return self.connector(x).view(samples, len(self.order), -1)[:, self.back]

    def hidden(self, rows):
        text = max(self.grid) + torch.arange(rows.shape[1] - len(self.order), device=rows.device)
        positions = torch.cat([self.visual_positions, text.expand(3, -1)], 1)[:, None].expand(-1, len(rows), -1)
        return self.decoder.model(inputs_embeds=rows, position_ids=positions, use_cache=False).last_hidden_state
