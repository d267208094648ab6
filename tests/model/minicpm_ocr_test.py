"""Folders of MiniCPM-OCR against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, and folders that
go through the engine and back.

usage: minicpm_ocr_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import unittest

import minicpm_test
from minicpm_test import OF_QWEN3, TEXT, config_of
from with_transformers import changed_copy, engine, folder as root, run

from transformers import MiniCPMOcrConfig


class MiniCpmOcr(minicpm_test.MiniCpm):
    configs = {
        "usual": config_of(TEXT, {}, MiniCPMOcrConfig, downsample_mode="16x"),
        "of_4_patches": config_of(OF_QWEN3, {"image_size": 21, "patch_size": 3}, MiniCPMOcrConfig),
        "untied": config_of(OF_QWEN3, {"image_size": 15, "patch_size": 5, "hidden_act": "gelu"}, MiniCPMOcrConfig, tie_word_embeddings=False),
    }
    image_processor = "MiniCPMOcrImageProcessor"

    def test_defaults_are_those_of_transformers(self):
        """Embeddings are tied, and rows are made of few patches."""
        def without(config):
            del config["downsample_mode"], config["tie_word_embeddings"]
        run(engine, "import", "--model", changed_copy(root / "of_4_patches", without), "--out", root / "short.model")
        self.assertTrue(self.says_the_same(("of_4_patches", "short"), self.configs["of_4_patches"]))

    def test_image_processors_that_read_glyphs_are_refused(self):
        self.refused_processors(({"small_image_upsize": "adaptive"}, "'small_image_upsize' = \"adaptive\"", "always and never are"))


if __name__ == "__main__":
    unittest.main()
