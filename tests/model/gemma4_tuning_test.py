"""The way of a Gemma 4 that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has the
same losses, gradient steps, floating-point operations and generated tokens.

usage: gemma4_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

from picture_questions import folder, inputs_of, make
from cell_tuning import SAMPLES, CellPictures, ImageGeneration, ImageTraining, two_ranks, write_questions
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (40, 12)]  # each grows or shrinks to some 70 cells


class Processor(Gemma4Processor):
    """With the image processor that needs no torchvision, and without those of sound and videos."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-gemma4", SIZES, 70, 1024)
    Gemma4.processor = Processor(None, Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=3, max_soft_tokens=70), words, None,
                                 chat_template=words.chat_template)
    (folder / "all.lua").write_text(write_questions(SIZES))


class Gemma4(CellPictures):
    sizes, end, unused = SIZES, "<turn|>\n", ("layer_scalar", "input_m", "output_m")
    linears = ("_proj.weight", "per_layer_input_gate.weight", "per_layer_projection.weight", "per_layer_model_projection.weight")

    def frames_in(self, inputs):
        return (inputs["image_position_ids"][..., 0] >= 0).sum().item() // 9


class Generation(Gemma4, ImageGeneration, unittest.TestCase):
    processor_name = "Gemma 4"
    has_limits = False


class Training(Gemma4, ImageTraining, unittest.TestCase):
    attending = 3 * 1 + 3 * 2  # half of the layers have heads of twice the size
    frames_of_a_pack = 70

    def uncounted(self, counted):
        """Patches that fill an image up to the most that there may be, and the products by which means of patches are computed."""
        rows = pairs = 0
        for number in range(SAMPLES):
            places = inputs_of(self.processor, "?", [f"question-{number}.png"])["image_position_ids"]
            used, all_rows = (places[..., 0] >= 0).sum().item(), places.shape[1]
            rows += all_rows - used
            pairs += all_rows ** 2 - used ** 2
        width, mlp, pixels, layers = 48, 96, 48, 2
        of_layer = 3 * 2 * (rows * (4 * width * width + 3 * width * mlp) + pairs * 2 * width)
        means = SAMPLES * 2 * 2 * all_rows // 9 * all_rows * width
        return layers * of_layer + rows * 2 * 2 * pixels * width + means

    def test_two_ranks_share_texts_and_their_positions(self):
        """They do not, since layers have windows."""
        said, codes = two_ranks()
        self.assertNotIn(0, codes)
        self.assertIn("layers of the decoder attend to the last 20 rows alone", said)


if __name__ == "__main__":
    unittest.main()
