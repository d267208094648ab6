"""Folders of MiniCPM-V 4.7 against transformers: logits, loss and every gradient on texts with images and their parts inside, whose rows have positions on
canvases, generated tokens, and folders that go through the engine and back.

usage: minicpm47_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import unittest

import minicpm_test
from cell_folders import IMAGE, edit
from minicpm_test import OF_QWEN3, TEXT, config_of

from transformers import MiniCPMV4_7Config

BEGIN, END, PART, PART_END, NEWLINE = 257, 258, 259, 260, 10
TOKENS = {"image_start_id": BEGIN, "image_end_id": END, "slice_start_id": PART, "slice_end_id": PART_END, "newline_id": NEWLINE}
OF_QWEN3_VL = OF_QWEN3 | {"model_type": "qwen3_vl_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2],
                                                                            "mrope_interleaved": True}}
WITHOUT_DELTA_RULE = TEXT | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}


def shown(*grid, parts=(0, 0), of=(0, 0)):
    """Tokens of an image of lines and columns of cells and of its lines of parts, each of which has cells too; and all these grids."""
    part = [PART] + [IMAGE] * (of[0] * of[1]) + [PART_END]
    lines = [part * parts[1] for _ in range(parts[0])]
    tokens = [BEGIN] + [IMAGE] * (grid[0] * grid[1]) + [END] + sum(([NEWLINE] * (number > 0) + line for number, line in enumerate(lines)), [])
    return tokens, [grid] + [of] * (parts[0] * parts[1])


TEXTS = [
    [[5, 9], shown(2, 3), [11, 3], shown(5, 2), [12, 7, 8, 1, 30]],
    [shown(3, 4, parts=(2, 2), of=(2, 3)), [13, NEWLINE, 14], shown(2, 2, parts=(1, 2), of=(3, 1)), [NEWLINE, 30, 31]],
    [[7, 8, 1, 30]],
    [[4], shown(1, 1), shown(4, 5, parts=(3, 1), of=(2, 7)), [NEWLINE, NEWLINE, 9], shown(1, 9, parts=(2, 3), of=(1, 2)), [NEWLINE], shown(2, 2), [14, 6, 2]],
]


class MiniCpm47(minicpm_test.MiniCpm):
    configs = {
        "usual": config_of(TEXT, {}, MiniCPMV4_7Config, tie_word_embeddings=True, **TOKENS),
        "of_qwen3_vl": config_of(OF_QWEN3_VL, {"image_size": 21, "patch_size": 3, "hidden_act": "gelu"}, MiniCPMV4_7Config, insert_layer_id=0, **TOKENS),
        "of_4_patches": config_of(WITHOUT_DELTA_RULE, {}, MiniCPMV4_7Config, downsample_mode="4x", **TOKENS),
    }
    pictures = [[grid for piece in text if isinstance(piece, tuple) for grid in piece[1]] for text in TEXTS]
    has_token_types = True

    def texts(self):
        return [[token for piece in text for token in (piece[0] if isinstance(piece, tuple) else piece)] for text in TEXTS]

    def inputs(self, config):
        for given in super().inputs(config):
            for model in self.models.values():  # which would count answers on from the previous text's images, where a text has none
                model.model.rope_deltas = None
            yield given

    def test_decoders_and_tokens_that_do_not_fit_are_refused(self):
        self.refused((edit("image_start_id")(None), None, "'image_start_id'"), (edit("newline_id")("\n"), None, "'newline_id'"),
                     (edit("text_config", "model_type")("qwen3"), None, "'model_type' = \"qwen3\" of text_config", "by the M-RoPE of qwen3_5_text"))


if __name__ == "__main__":
    unittest.main()
