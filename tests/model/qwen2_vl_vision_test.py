"""The vision encoders of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5 with their mergers against transformers, for images of several sizes: hidden
states of both, and every gradient.

usage: qwen2_vl_vision_test.py TOWER_PROBE CONNECTOR_PROBE; exit 77 where transformers is missing."""
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
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionConfig, Qwen3_5VisionModel
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionConfig, Qwen3VLVisionModel
    from transformers.utils import logging
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

torch.set_num_threads(1)
logging.disable_progress_bar()
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)
DECODER = 20
QWEN2 = {"depth": 3, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "hidden_size": DECODER, "patch_size": 4}
QWEN2_5 = {"depth": 4, "hidden_size": 32, "num_heads": 2, "intermediate_size": 52, "out_hidden_size": DECODER, "patch_size": 4,
           "window_size": 32, "fullatt_block_indexes": [1, 3]}  # windows of 4 x 4 cells
QWEN3 = {"depth": 3, "hidden_size": 32, "num_heads": 2, "intermediate_size": 52, "out_hidden_size": DECODER, "patch_size": 4,
         "num_position_embeddings": 49, "deepstack_visual_indexes": [0, 1]}
QWEN3_5 = {key: value for key, value in QWEN3.items() if key != "deepstack_visual_indexes"}
MERGER = {"norm.": "ln_q.", "linear_fc1.": "mlp.0.", "linear_fc2.": "mlp.2."}  # what the engine calls Qwen3-VL's and Qwen3.5's as Qwen2-VL's
GRIDS = [(3, 5), (1, 1), (9, 2), (4, 4), (1, 7)]  # cells of images


def made(kind, config):
    """A model whose every bias and scale matters."""
    torch.manual_seed(1)
    model = kind(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    folder = root / f"folder-{len(list(root.iterdir()))}"
    model.save_pretrained(folder)
    return model, folder


def run(*command):
    return forked_program.run(command)


def patches_of(cells, merge, patch):
    """Rows as transformers' image processor makes them of a still image, cell by cell."""
    squares = cells.unflatten(2, (merge, patch)).unflatten(4, (merge, patch)).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(-1, 3, 1, patch, patch).expand(-1, -1, 2, -1, -1).flatten(1)


class Towers(unittest.TestCase):
    def compare(self, ours, expected, what):
        self.assertEqual(set(ours), set(expected))
        floor = 0.01 * max(value.abs().max().item() for value in expected.values())
        for name, right in expected.items():
            off = (ours[name] - right.reshape(ours[name].shape)).abs().max().item() / max(right.abs().max().item(), floor)
            self.assertLessEqual(off, 1e-5, f"{name} of {what}")

    def check(self, kind, config, grids, padding=0):
        model, folder = made(kind, config)
        merge, patch = config.spatial_merge_size, config.patch_size
        count = sum(rows * columns for rows, columns in grids)
        cells = torch.randn(count, 3, merge * patch, merge * patch)
        thw = torch.tensor([[1, rows * merge, columns * merge] for rows, columns in grids])
        kept = {}

        def keep(module, inputs):  # in the order of windows, where there are some
            kept["hidden"] = inputs[0]
            inputs[0].retain_grad()
        model.merger.register_forward_pre_hook(keep)
        merged = model(patches_of(cells, merge, patch), thw).pooler_output
        torch.manual_seed(3)
        d_rows = torch.randn_like(merged)
        merged.backward(d_rows)

        # The windows' order, from where each row of the merger's own output went.
        order = torch.arange(count)
        if hasattr(model, "window_size"):
            from transformers.vision_utils import get_vision_window_index
            order = get_vision_window_index(thw, merge, config.window_size, patch)[0]
        back = torch.argsort(order)
        hidden = kept["hidden"].unflatten(0, (count, -1))[back]
        d_hidden = kept["hidden"].grad.unflatten(0, (count, -1))[back]

        expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and not name.startswith("merger.")}
        pad = lambda x: torch.cat([x, torch.zeros(padding, *x.shape[1:])]).contiguous()
        save_file({"frames": pad(cells), "grids": torch.tensor(grids), "d_hidden": pad(d_hidden).flatten(0, 1)}, root / "in.safetensors")
        result = run(tower_probe, "vision", folder, root / "in.safetensors", root / "out.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        ours = load_file(root / "out.safetensors")
        ours["hidden"] = ours["hidden"][:count * merge * merge]
        self.compare(ours, expected | {"hidden": hidden.detach()}, f"{grids} of {folder.name}")

        merger = {}
        for name, parameter in model.merger.named_parameters():
            theirs = next((one for one in MERGER if name.startswith(one)), "")
            merger[MERGER.get(theirs, "") + name.removeprefix(theirs)] = parameter
        save_file({name: p.detach() for name, p in merger.items()}, root / "merger.safetensors")
        save_file({"hidden": hidden.detach().contiguous(), "d_rows": d_rows}, root / "in.safetensors")
        connector = {"kind": "qwen2_vl", "factor": merge, "rms_norm": hasattr(model, "window_size")}
        result = run(connector_probe, json.dumps({"connector": connector, "decoder_width": DECODER}), root / "merger.safetensors",
                     root / "in.safetensors", root / "out.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.compare(load_file(root / "out.safetensors"),
                     {name: p.grad for name, p in merger.items()} | {"rows": merged.detach(), "d_hidden": d_hidden}, "the merger")

    def test_qwen2_vl(self):
        for grids in (GRIDS, [(2, 3)], [(1, 1)]):
            with self.subTest(grids=grids):
                self.check(Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig(**QWEN2), grids)

    def test_qwen2_5_vl(self):
        for grids in (GRIDS, [(2, 3)], [(8, 12), (5, 9)]):
            with self.subTest(grids=grids):
                self.check(Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig(**QWEN2_5), grids)

    def test_qwen3_vl(self):
        for grids in (GRIDS, [(2, 3)], [(1, 1)], [(8, 12), (5, 9)]):
            with self.subTest(grids=grids):
                self.check(Qwen3VLVisionModel, Qwen3VLVisionConfig(**QWEN3), grids)

    def test_qwen3_5(self):
        for grids in (GRIDS, [(2, 3)], [(8, 12), (5, 9)]):
            with self.subTest(grids=grids):
                self.check(Qwen3_5VisionModel, Qwen3_5VisionConfig(**QWEN3_5), grids)

    def test_other_sizes(self):
        for changes in ({"spatial_merge_size": 3}, {"patch_size": 14, "embed_dim": 48, "num_heads": 3}):
            with self.subTest(**changes):
                self.check(Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig(**(QWEN2 | changes)), GRIDS)
        for changes in ({"fullatt_block_indexes": []}, {"window_size": 17}, {"fullatt_block_indexes": [0, 1, 2, 3]},
                        {"window_size": 24, "spatial_merge_size": 1}):
            with self.subTest(**changes):
                self.check(Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig(**(QWEN2_5 | changes)), GRIDS)
        for changes in ({"spatial_merge_size": 3}, {"num_position_embeddings": 1}, {"num_position_embeddings": 10000, "patch_size": 8},
                        {"deepstack_visual_indexes": []}):
            with self.subTest(**changes):
                self.check(Qwen3VLVisionModel, Qwen3VLVisionConfig(**(QWEN3 | changes)), GRIDS)

    def test_padding_changes_nothing(self):
        self.check(Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig(**QWEN2), GRIDS, padding=3)
        self.check(Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig(**QWEN2_5), GRIDS, padding=5)
        self.check(Qwen3VLVisionModel, Qwen3VLVisionConfig(**QWEN3), GRIDS, padding=2)

    def test_what_is_not_supported_is_named(self):
        cells = {"frames": torch.randn(1, 3, 8, 8), "grids": torch.tensor([[1, 1]]), "d_hidden": torch.randn(4, 32)}
        save_file(cells, root / "in.safetensors")
        for kind, config, changes, words in (
                (Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig(**QWEN2), {"hidden_act": "gelu"},
                 ["'hidden_act' = \"gelu\"", "only quick_gelu is"]),
                (Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig(**QWEN2), {"in_channels": 1}, ["'in_channels' = 1"]),
                (Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig(**QWEN2), {"num_heads": 16},
                 ["16 heads of a width of 32"]),
                (Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig(**QWEN2),
                 {"rope_parameters": {"rope_type": "axial", "rope_theta": 5000.0}}, ["'rope_parameters'", "theta of 10000"]),
                (Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig(**QWEN2_5), {"hidden_act": "gelu"},
                 ["'hidden_act' = \"gelu\"", "only silu is"]),
                (Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig(**QWEN2_5), {"window_size": 7},
                 ["'window_size' = 7", "8 pixels"]),
                (Qwen3VLVisionModel, Qwen3VLVisionConfig(**QWEN3), {"num_position_embeddings": 50},
                 ["'num_position_embeddings' = 50 is no square"]),
                (Qwen3VLVisionModel, Qwen3VLVisionConfig(**QWEN3), {"deepstack_visual_indexes": [1, 0]},
                 ["'deepstack_visual_indexes' = [1,0]", "layers from 0 to 2 in ascending order are"]),
                (Qwen3VLVisionModel, Qwen3VLVisionConfig(**QWEN3), {"deepstack_visual_indexes": [2, 3]},
                 ["'deepstack_visual_indexes' = [2,3]"]),
                (Qwen3VLVisionModel, Qwen3VLVisionConfig(**QWEN3), {"hidden_act": "gelu"}, ["only gelu_pytorch_tanh is"]),
                (Qwen3_5VisionModel, Qwen3_5VisionConfig(**QWEN3_5), {"deepstack_visual_indexes": [1]},
                 ["'deepstack_visual_indexes' = [1]", "this model has no DeepStack"])):
            with self.subTest(**changes):
                folder = made(kind, config)[1]
                saved = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps(saved | changes))
                result = run(tower_probe, "vision", folder, root / "in.safetensors", root / "out.safetensors")
                self.assertEqual(result.returncode, 4, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main()
