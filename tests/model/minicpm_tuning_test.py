"""The way of a MiniCPM-V 4.6 or 4.7 or a MiniCPM-OCR that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and
transformers has the same losses, gradient steps, floating-point operations and generated tokens.

usage: minicpm_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import sys
import unittest
from unittest import mock

FAMILY = sys.argv.pop(3)

from picture_questions import folder, inputs_of, make
from cell_tuning import SAMPLES, WIDTH, CellPictures, ImageGeneration, ImageTraining, write_questions
from minicpm_processor import PROCESSORS, processor_of
from transformers.models.qwen3_5 import modeling_qwen3_5

# 3 x 3 cells and more, and all but the second with parts besides: 1 x 2, 3 x 1, 1 x 4, 2 x 2 and 1 x 2 of them.
SIZES = [(32, 20), (8, 8), (17, 60), (90, 20), (40, 60), (40, 20)]


def setUpModule():
    words = make("make-minicpm", SIZES, 60, 1024, "--family", FAMILY)
    MiniCpm.processor = processor_of(folder / "hf", words, PROCESSORS[FAMILY])
    (folder / "all.lua").write_text(write_questions(SIZES))


class MiniCpm(CellPictures):
    sizes, end = SIZES, "<|im_end|>\n"
    unused = ("vit_merger",) if FAMILY == "minicpm_ocr" else ()  # whose rows are made of 4 patches
    linears = ("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight")

    def frames_in(self, inputs):
        return inputs["target_sizes"].prod(1).sum().item() // (4 if FAMILY == "minicpm_ocr" else 16)


class Generation(MiniCpm, ImageGeneration, unittest.TestCase):
    processor_name = "MiniCPM-V"
    has_limits = False

    def test_large_images_are_cut_into_parts(self):
        parts = [len(inputs_of(self.processor, "?", [f"{number}.png"])["target_sizes"]) for number in range(len(SIZES))]
        self.assertEqual(parts, [3, 1, 4, 5, 5, 3])


class Training(MiniCpm, ImageTraining, unittest.TestCase):
    attending, frames_of_a_pack = 1, 60

    def uncounted(self, counted):
        """The head's products of all rows that no label is of, but in MiniCPM-V 4.7, which leaves them out. Less what the engine counts of a delta rule
        besides: three products of each row's key with a head's state, in three passes."""
        rows, labels = (sum(counts) for counts in zip(*(self.counts_of(number) for number in range(SAMPLES))))
        without_label = 0 if FAMILY == "minicpmv4_7" else rows - labels
        heads, keys, values = 4, 8, 8
        return 3 * 2 * without_label * WIDTH * len(self.processor.tokenizer) - 3 * 3 * rows * 2 * heads * keys * values

    def counts_of(self, number):
        """Rows and labels of a sample."""
        labels = len(self.processor.tokenizer(f"It is {number}.{self.end}")["input_ids"])
        return inputs_of(self.processor, "Which number?", [f"question-{number}.png"])["input_ids"].shape[1] + labels, labels

    def test_floating_point_operations_are_those_that_pytorch_counts(self):
        """Of a delta rule row by row, which has no matrix products, and without its convolution."""
        with (mock.patch.object(modeling_qwen3_5, "torch_chunk_gated_delta_rule", modeling_qwen3_5.torch_recurrent_gated_delta_rule),
              mock.patch.object(modeling_qwen3_5, "causal_conv1d_fn", lambda rows, *_, **__: rows)):
            super().test_floating_point_operations_are_those_that_pytorch_counts()

    def test_two_ranks_share_texts_and_their_positions(self):
        """They do not, since a delta rule reads the rows before its own."""
        self.expect_two_ranks_refused()


if __name__ == "__main__":
    unittest.main()
