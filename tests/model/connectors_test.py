"""Connectors by themselves against transformers and torch.nn: rows, and the gradient of the input and of every weight.

usage: connectors_test.py CONNECTOR_PROBE; exit 77 where transformers is missing."""
import json
import sys
import tempfile
import types
import unittest
from pathlib import Path

import forked_program

probe = Path(sys.argv.pop(1)).resolve()
try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn
    from transformers import CLIPVisionConfig, Idefics3Config, InternVLConfig, InternVLModel, LlamaConfig, LlavaConfig, LlavaNextConfig
    from transformers import Ovis2Config, Ovis2Model, Qwen2Config
    from transformers import LlavaOnevisionConfig, LlavaOnevisionModel, SiglipVisionConfig
    from transformers.models.granite_docling.modeling_granite_docling import GraniteDoclingConnector, GraniteDoclingVisionConfig
    from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector
    from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector
    from transformers.models.llava.modeling_llava import LlavaMultiModalProjector
    from transformers.models.llava_next.modeling_llava_next import LlavaNextMultiModalProjector
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

torch.set_num_threads(1)
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
WIDTH, DECODER = 32, 24
LLAMA = LlamaConfig(hidden_size=DECODER, num_attention_heads=2)


class ResamplerLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, tokens):
        read, weights = self.cross_attn(self.norm1(x), tokens, tokens, average_attn_weights=False)
        x = x + read
        return x + self.mlp(self.norm2(x)), weights


class Resampler(nn.Module):
    def __init__(self, width, queries, layers, heads):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        self.layers = nn.ModuleList(ResamplerLayer(width, heads) for _ in range(layers))

    def forward(self, tokens):
        x, maps = self.queries.expand(tokens.shape[0], -1, -1), []
        for layer in self.layers:
            x, weights = layer(x, tokens)
            maps.append(weights)
        self.maps = torch.stack(maps, 1)  # [images, layers, heads, queries, tokens]
        return x


class Pool(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, tokens):
        return nn.functional.adaptive_avg_pool1d(tokens.transpose(1, 2), self.rows).transpose(1, 2)


class GhostVis(nn.Module):
    """The tokens of an image, resampled or pooled, and the projector."""

    def __init__(self, resampler, inner):
        super().__init__()
        self.vision_resampler = resampler
        self.vision_projector = nn.Module()
        self.vision_projector.mlp = nn.Sequential(
            nn.Linear(WIDTH, inner), nn.GELU(), nn.Dropout(0), nn.Linear(inner, DECODER), nn.LayerNorm(DECODER))

    def forward(self, tokens):
        return self.vision_projector.mlp(self.vision_resampler(tokens))


class Connectors(unittest.TestCase):
    def check(self, config, tokens, module, oracle=None):
        """`oracle`: from hidden states to rows; the module itself where it does not say otherwise."""
        torch.manual_seed(5)
        for parameter in module.parameters():
            parameter.data = 0.3 * torch.randn_like(parameter)
        hidden = torch.randn(3, tokens, WIDTH, requires_grad=True)
        rows = (oracle or module)(hidden)
        d_rows = torch.randn_like(rows)
        rows.backward(d_rows)
        save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / "weights.safetensors")
        save_file({"hidden": hidden.detach(), "d_rows": d_rows.reshape(-1, DECODER)}, folder / "in.safetensors")
        given = json.dumps({"connector": config, "decoder_width": DECODER})
        result = forked_program.run([probe, given, folder / "weights.safetensors", folder / "in.safetensors", folder / "out.safetensors"])
        self.assertEqual(result.returncode, 0, result.stderr)
        ours = load_file(folder / "out.safetensors")
        expected = {name: parameter.grad for name, parameter in module.named_parameters()}
        expected |= {"rows": rows.detach().reshape(-1, DECODER), "d_hidden": hidden.grad}
        floor = 0.01 * max(g.abs().max().item() for g in expected.values())
        for name, right in expected.items():
            off = (ours[name] - right).abs().max().item() / max(right.abs().max().item(), floor)
            self.assertLessEqual(off, 1e-5, f"{config}: {name}")
        return ours

    def test_mlp_is_that_of_llava(self):
        config = LlavaConfig(vision_config=CLIPVisionConfig(hidden_size=WIDTH, num_attention_heads=2), text_config=LLAMA)
        self.check({"kind": "mlp"}, 10, LlavaMultiModalProjector(config))

    def test_newlines_are_those_of_llava_next(self):
        config = LlavaNextConfig(vision_config=CLIPVisionConfig(hidden_size=WIDTH, num_attention_heads=2), text_config=LLAMA)
        projector = LlavaNextMultiModalProjector(config)
        projector.image_newline = nn.Parameter(torch.zeros(DECODER))

        def rows(hidden):
            lines = projector(hidden).unflatten(1, (4, 4))
            return torch.cat([lines, projector.image_newline.expand(len(hidden), 4, 1, -1)], dim=2).flatten(1, 2)

        self.check({"kind": "mlp", "newline": True}, 16, projector, rows)
        with self.assertRaisesRegex(AssertionError, "frames of 17 tokens are no square of patches"):
            self.check({"kind": "mlp", "newline": True}, 17, projector, lambda hidden: rows(hidden[:, 1:]))

    def test_pooling_is_that_of_llava_onevision(self):
        for side in (4, 5):
            config = LlavaOnevisionConfig(vision_config=SiglipVisionConfig(hidden_size=WIDTH, image_size=side, patch_size=1), text_config=LLAMA)
            model = types.SimpleNamespace(config=config)
            projector = LlavaNextMultiModalProjector(config)
            projector.image_newline = nn.Parameter(torch.zeros(DECODER))

            def rows(hidden):
                patches = projector(hidden)
                lines = torch.cat([patches.unflatten(1, (side, side)), projector.image_newline.expand(len(hidden), side, 1, -1)], dim=2)
                return torch.cat([lines.flatten(1, 2), LlavaOnevisionModel.apply_pooling(model, patches)], dim=1)

            self.check({"kind": "mlp", "newline": True, "video_pooling": True}, side * side, projector, rows)

    def test_pixel_shuffle_is_that_of_idefics3(self):
        for factor, tokens in ((2, 16), (3, 36), (4, 64)):
            config = Idefics3Config(vision_config={"hidden_size": WIDTH}, text_config=LLAMA, scale_factor=factor)
            self.check({"kind": "pixel_shuffle", "factor": factor}, tokens, Idefics3Connector(config))

    def test_granite_docling_is_that_of_transformers(self):
        """Without the encoder's further layers, which whole_test.py has."""
        for factor, tokens in ((2, 16), (4, 64), (2, 36), (1, 9)):
            config = GraniteDoclingVisionConfig(hidden_size=WIDTH, out_hidden_size=DECODER, scale_factor=factor, image_size=int(tokens ** 0.5), patch_size=1,
                                                deepstack_visual_indexes=[], use_fine_route=False)
            module = GraniteDoclingConnector(config)
            self.check({"kind": "granite_docling", "factor": factor, "deepstack": 0}, tokens, module, lambda hidden: module(hidden, [])[0])

    def test_internvl_is_that_of_transformers(self):
        for factor, tokens in ((2, 16), (1, 9), (4, 64)):
            projector = InternVLMultiModalProjector(
                InternVLConfig(vision_config={"hidden_size": WIDTH}, text_config=LLAMA, downsample_ratio=1 / factor))

            def rows(hidden):
                squares = hidden.unflatten(1, (int(tokens ** 0.5), -1))
                return projector(InternVLModel.pixel_shuffle(None, squares, 1 / factor).flatten(1, 2))

            self.check({"kind": "internvl", "factor": factor}, tokens, projector, rows)

    def test_visual_words_are_those_of_ovis2(self):
        for factor, tokens, words in ((2, 16, 21), (1, 9, 6), (4, 64, 133)):
            side = int(tokens ** 0.5)
            vision = {"hidden_size": WIDTH, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "image_size": side, "patch_size": 1,
                      "hidden_stride": factor, "vocab_size": words}
            text = Qwen2Config(vocab_size=8, hidden_size=DECODER, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
            model = Ovis2Model(Ovis2Config(vision_config=vision, text_config=text, hidden_size=DECODER))
            module = nn.Module()
            module.head_linear, module.head_norm = model.vision_tower.head_linear, model.vision_tower.head_norm
            module.visual_embeddings_table = model.visual_embeddings_table

            def rows(hidden):
                model.vision_tower.transformer.forward = lambda *_, **__: (hidden,)
                made = model.get_image_features(torch.zeros(1))
                return torch.cat([made.pooler_output, made.visual_indicator_features.expand(len(hidden), -1, -1)], dim=1)

            self.check({"kind": "ovis2", "factor": factor, "vocabulary": words}, tokens, module, rows)

    def test_pixel_shuffle_refuses_frames_that_it_cannot_cut(self):
        config = Idefics3Config(vision_config={"hidden_size": WIDTH}, text_config=LLAMA, scale_factor=4)
        with self.assertRaisesRegex(AssertionError, "frames of 36 tokens are not a square of patches whose side is divisible by the factor 4"):
            self.check({"kind": "pixel_shuffle", "factor": 4}, 36, Idefics3Connector(config), lambda hidden: hidden[:, :4, :DECODER])

    def test_perceiver_is_multihead_attention_in_layers(self):
        for queries, layers, heads in ((7, 2, 4), (1, 1, 8)):
            module = GhostVis(Resampler(WIDTH, queries, layers, heads), 40)
            config = {"kind": "perceiver", "queries": queries, "layers": layers, "heads": heads, "projector_width": 40}
            ours = self.check(config, 10, module)
            maps = module.vision_resampler.maps.detach()
            self.assertLess((ours["attention"] - maps.mean(3)).abs().max().item(), 1e-6)
            if queries > 1:
                self.assertLess((ours["query_attention"] - maps.mean((1, 2))).abs().max().item(), 1e-6)

    def test_average_pool_is_that_of_pytorch(self):
        for rows, tokens in ((4, 16), (5, 16), (16, 16), (7, 4)):
            self.check({"kind": "average_pool", "rows": rows, "projector_width": 40}, tokens, GhostVis(Pool(rows), 40))


if __name__ == "__main__":
    unittest.main()
