"""The vision encoder of Gemma 4 with its pooler and embedder against transformers, for images of several sizes: hidden states of both, and every
gradient.

usage: gemma4_vision_test.py TOWER_PROBE CONNECTOR_PROBE; exit 77 where transformers is missing."""
import json
import sys
import tempfile
import unittest
from pathlib import Path

import forked_program

tower_probe, connector_probe = Path(sys.argv.pop(1)).resolve(), Path(sys.argv.pop(1)).resolve()
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Gemma4TextConfig, Gemma4VisionConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ClippableLinear, Gemma4MultimodalEmbedder, Gemma4VisionModel
    from transformers.utils import logging
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

torch.set_num_threads(1)
logging.disable_progress_bar()
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)
DECODER = 20
VISION = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 12,
          "patch_size": 4, "position_embedding_size": 30}
GRIDS = [(3, 5), (1, 1), (9, 2), (4, 4), (1, 7)]  # cells of images


def made(config):
    """A model whose every weight matters, and whose linears clip some of what they read and make, on either side."""
    torch.manual_seed(1)
    model = Gemma4VisionModel(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    for module in model.modules():
        if isinstance(module, Gemma4ClippableLinear) and config.use_clipped_linears:
            for name, bound in (("input_min", -1.5), ("input_max", 1.0), ("output_min", -0.8), ("output_max", 1.2)):
                getattr(module, name).copy_(bound + 0.3 * torch.rand(()))
    folder = root / f"folder-{len(list(root.iterdir()))}"
    model.save_pretrained(folder)
    return model, folder


def run(*command):
    return forked_program.run(command)


def as_theirs(cells, grids, merge, patch):
    """Rows and places of patches as transformers' image processor makes them, images being padded to the same number, and for each of our patches, which
    are cell by cell, where it is: its image and its row."""
    images, order = cells.split([rows * columns for rows, columns in grids]), []
    most = max(len(image) for image in images) * merge * merge
    pixels, places = torch.zeros(len(grids), most, 3 * patch * patch), torch.full((len(grids), most, 2), -1)
    for index, (image, (rows, columns)) in enumerate(zip(images, grids)):
        squares = image.unflatten(0, (rows, columns)).unflatten(3, (merge, patch)).unflatten(5, (merge, patch))
        lines = squares.permute(0, 3, 1, 5, 4, 6, 2).reshape(rows * merge, columns * merge, -1)
        place = torch.stack(torch.meshgrid(torch.arange(columns * merge), torch.arange(rows * merge), indexing="xy"), -1)
        pixels[index, :lines.shape[0] * lines.shape[1]] = lines.flatten(0, 1)
        places[index, :lines.shape[0] * lines.shape[1]] = place.flatten(0, 1)
        at = torch.arange(lines.shape[0] * lines.shape[1]).view(rows, merge, columns, merge).transpose(1, 2).flatten()
        order.append(torch.stack([torch.full_like(at, index), at]))
    return pixels, places, torch.cat(order, 1)


class Towers(unittest.TestCase):
    def compare(self, ours, expected, what):
        self.assertEqual(set(ours), set(expected))
        floor = 0.01 * max(value.abs().max().item() for value in expected.values())
        worst = 0
        for name, right in expected.items():
            off = (ours[name] - right.reshape(ours[name].shape)).abs().max().item() / max(right.abs().max().item(), floor)
            self.assertLessEqual(off, 1e-5, f"{name} of {what}")
            worst = max(worst, off)
        print(f"{what}: at most {worst:.1e} off")

    def check(self, changes, grids, padding=0):
        config = Gemma4VisionConfig(**VISION | changes)
        config._attn_implementation = "eager"
        model, folder = made(config)
        merge, patch = config.pooling_kernel_size, config.patch_size
        embedder = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(hidden_size=DECODER, num_hidden_layers=1))
        torch.nn.init.normal_(embedder.embedding_projection.weight)
        if config.standardize:
            model.std_bias.copy_(torch.randn(config.hidden_size))
            model.std_scale.copy_(1 + torch.rand(config.hidden_size))
        count = sum(rows * columns for rows, columns in grids)
        cells = torch.rand(count, 3, merge * patch, merge * patch) * 2 - 1  # as the image processor scales them
        pixels, places, order = as_theirs((cells + 1) / 2, grids, merge, patch)
        kept = {}

        def keep(module, inputs, words):
            kept["hidden"] = words["hidden_states"]
            kept["hidden"].retain_grad()
        model.pooler.register_forward_pre_hook(keep, with_kwargs=True)
        rows = embedder(model(pixels, places).last_hidden_state)
        torch.manual_seed(3)
        d_rows = torch.randn_like(rows)
        rows.backward(d_rows)
        hidden, d_hidden = kept["hidden"].detach()[order[0], order[1]], kept["hidden"].grad[order[0], order[1]]

        saved = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(saved | {"standardize": False}))
        if config.standardize:
            tensors = load_file(folder / "model.safetensors")
            save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("std_")}, folder / "model.safetensors")
        pad = lambda x: torch.cat([x, torch.zeros(padding, *x.shape[1:])]).contiguous()
        save_file({"frames": pad(cells), "grids": torch.tensor(grids), "d_hidden": pad(d_hidden.unflatten(0, (count, -1))).flatten(0, 1)},
                  root / "in.safetensors")
        result = run(tower_probe, "vision", folder, root / "in.safetensors", root / "out.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        ours = load_file(root / "out.safetensors")
        ours["hidden"] = ours["hidden"][:len(hidden)]
        self.compare(ours, {name: p.grad for name, p in model.named_parameters()} | {"hidden": hidden}, f"{grids} with {changes}")

        weights = {name: p.detach() for name, p in embedder.named_parameters()}
        if config.standardize:
            weights |= {"std_bias": model.std_bias, "std_scale": model.std_scale}
        save_file(weights, root / "connector.safetensors")
        save_file({"hidden": hidden.unflatten(0, (count, -1)).contiguous(), "d_rows": d_rows}, root / "in.safetensors")
        connector = {"kind": "gemma4", "factor": merge, "standardize": config.standardize, "norm_eps": config.rms_norm_eps}
        result = run(connector_probe, json.dumps({"connector": connector, "decoder_width": DECODER}), root / "connector.safetensors",
                     root / "in.safetensors", root / "out.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.compare(load_file(root / "out.safetensors"), {name: p.grad for name, p in embedder.named_parameters()}
                     | {"rows": rows.detach(), "d_hidden": d_hidden}, f"the connector with {changes}")

    def test_plain_linears(self):
        for grids in (GRIDS, [(2, 3)], [(1, 1)]):
            with self.subTest(grids=grids):
                self.check({}, grids)

    def test_clipped_linears(self):
        for grids in (GRIDS, [(2, 3)]):
            with self.subTest(grids=grids):
                self.check({"use_clipped_linears": True}, grids)

    def test_standardized_rows(self):
        self.check({"standardize": True, "rms_norm_eps": 1e-3}, GRIDS)

    def test_other_sizes(self):
        for changes in ({"pooling_kernel_size": 2, "patch_size": 5},
                        {"pooling_kernel_size": 4, "position_embedding_size": 36, "head_dim": 48, "num_attention_heads": 1, "num_key_value_heads": 1},
                        {"rope_parameters": {"rope_type": "axial", "rope_theta": 3e3}, "use_clipped_linears": True, "standardize": True}):
            with self.subTest(**changes):
                self.check(changes, GRIDS)

    def test_padding_changes_nothing(self):
        self.check({"use_clipped_linears": True}, GRIDS, padding=3)

    def test_words_of_published_configs(self):
        """The older word for its rotation, and keys that say nothing of images."""
        folder = made(Gemma4VisionConfig(**VISION))[1]
        saved = json.loads((folder / "config.json").read_text())
        published = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "global_head_dim": 12, "default_output_length": 280}
        (folder / "config.json").write_text(json.dumps(saved | published))
        save_file({"frames": torch.randn(1, 3, 12, 12), "grids": torch.tensor([[1, 1]]), "d_hidden": torch.randn(9, 48)}, root / "in.safetensors")
        result = run(tower_probe, "vision", folder, root / "in.safetensors", root / "out.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_what_is_not_supported_is_named(self):
        save_file({"frames": torch.randn(11, 3, 12, 12), "grids": torch.tensor([[1, 11]]), "d_hidden": torch.randn(99, 48)}, root / "in.safetensors")
        for changes, words in (
                ({"hidden_activation": "silu"}, ["'hidden_activation' = \"silu\"", "only gelu_pytorch_tanh is"]),
                ({"num_key_value_heads": 2}, ["'num_key_value_heads' = 2", "as many as queries have is: 4"]),
                ({"head_dim": 16}, ["'head_dim' = 16", "'hidden_size' = 48 divided by the 4 heads"]),
                ({"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 8, "hidden_size": 46}, ["6 heads of a width of 46"]),
                ({"attention_bias": True}, ["'attention_bias' = true"]),
                ({"attention_dropout": 0.1}, ["'attention_dropout' = 0.1"]),
                ({"standardize": True}, ["'standardize' = true", "by the connector of a whole model"]),
                ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0}}, ["'rope_parameters'", "only the type axial"]),
                ({"use_clipped_linears": True}, ["self_attn.q_proj.input_max\" is missing"]),
                ({}, ["an image of 33 x 3 patches is longer than the 30 positions"])):
            with self.subTest(**changes):
                folder = made(Gemma4VisionConfig(**VISION))[1]
                saved = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps(saved | changes))
                result = run(tower_probe, "vision", folder, root / "in.safetensors", root / "out.safetensors")
                self.assertEqual(result.returncode, 4, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main()
