"""The way of an LFM2-VL that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has the
same losses, gradient steps, floating-point operations and generated tokens.

usage: lfm2_vl_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

from picture_questions import folder, inputs_of, make
from cell_tuning import SAMPLES, CellPictures, ImageGeneration, ImageTraining, write_questions
from lfm2_vl_processor import processor_of

# 4 x 3, 2 x 1 and 2 x 6 cells, and in tiles of 2 x 2 cells 4 x 2 and 2 x 3 tiles.
SIZES = [(32, 24), (16, 8), (17, 60), (64, 33), (40, 60)]


def setUpModule():
    words = make("make-lfm2-vl", SIZES, 60, 1024)
    Lfm2Vl.processor = processor_of(folder / "hf", words)
    (folder / "all.lua").write_text(write_questions(SIZES))


class Lfm2Vl(CellPictures):
    sizes, end, linears = SIZES, "<|im_end|>\n", ("_proj.weight", "feed_forward.w")

    def frames_in(self, inputs):
        return (inputs["spatial_shapes"] // 2).prod(1).sum().item()


class Generation(Lfm2Vl, ImageGeneration, unittest.TestCase):
    processor_name = "LFM2-VL"
    has_limits = False

    def test_large_images_are_cut_into_tiles(self):
        tiles = [len(inputs_of(self.processor, "?", [f"{number}.png"])["spatial_shapes"]) for number in range(len(SIZES))]
        self.assertEqual(tiles[:3], [1, 1, 1])
        self.assertGreater(min(tiles[3:]), 2)


class Training(Lfm2Vl, ImageTraining, unittest.TestCase):
    attending, frames_of_a_pack = 1, 60

    def uncounted(self, counted):
        """Convolutions over rows, and patches that fill images of one text up to the same number."""
        convolutions = sum(count for operation, count in counted.get_flop_counts()["Global"].items() if "convolution" in str(operation))
        rows = pairs = 0
        for number in range(SAMPLES):
            mask = inputs_of(self.processor, "?", [f"question-{number}.png"])["pixel_attention_mask"]
            rows += mask.numel() - mask.sum().item()
            pairs += len(mask) * mask.shape[1] ** 2 - (mask.sum(1) ** 2).sum().item()
        width, mlp, pixels, layers = 32, 48, 48, 2
        of_layer = 3 * 2 * (rows * (4 * width * width + 2 * width * mlp) + pairs * 2 * width)
        return convolutions + layers * of_layer + rows * 2 * 2 * pixels * width

    def test_two_ranks_share_texts_and_their_positions(self):
        """They do not, since a convolution reads the rows before its own."""
        self.expect_two_ranks_refused()


if __name__ == "__main__":
    unittest.main()
