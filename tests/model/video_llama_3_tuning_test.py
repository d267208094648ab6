"""The way of a VideoLLaMA 3 that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has
the same losses, gradient steps, floating-point operations and generated tokens.

usage: video_llama_3_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

from picture_questions import engine, folder, make, run
from cell_tuning import CellPictures, ImageGeneration, ImageTraining, write_questions
from transformers.models.video_llama_3.image_processing_pil_video_llama_3 import VideoLlama3ImageProcessorPil
from transformers.models.video_llama_3.processing_video_llama_3 import VideoLlama3Processor

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (12, 40)]  # 4 x 3, 1, 2 x 8, 8 x 4 and 2 x 5 patches, each of which is a cell


class Processor(VideoLlama3Processor):
    """With the image processor that needs no torchvision, and none of videos."""

    def __init__(self, image_processor, tokenizer, chat_template):
        super().__init__(image_processor, tokenizer, None, chat_template)

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-video-llama-3", SIZES, 40, 1024)
    VideoLlama3.processor = Processor(VideoLlama3ImageProcessorPil.from_pretrained(folder / "hf"), words, words.chat_template)
    (folder / "all.lua").write_text(write_questions(SIZES))


class VideoLlama3(CellPictures):
    sizes, end, decoder = SIZES, "<|im_end|>\n", "model.layers"

    def frames_in(self, inputs):
        return inputs["image_grid_thw"].prod(1).sum().item()

    def loss_of_answer(self, model, inputs, number):
        """transformers' model reads no logits_to_keep: its head gets the rows of the answer alone."""
        asked = inputs["input_ids"].shape[1]
        hook = model.lm_head.register_forward_pre_hook(lambda _, given: (given[0][:, asked - 1:-1],))
        try:
            return super().loss_of_answer(model, inputs, number)
        finally:
            hook.remove()


class Generation(VideoLlama3, ImageGeneration, unittest.TestCase):
    processor_name = "VideoLLaMA 3"

    def test_image_processors_that_merge_patches_are_refused(self):
        config = folder / "model" / "vision" / "preprocessor_config.json"
        written = config.read_text()
        for option in ("merge_size", "temporal_patch_size"):
            config.write_text(written.replace(f'"{option}": 1', f'"{option}": 2'))
            said = run(engine, "generate", "model", "--image", "0.png", "--prompt", "What?", code=4)
            config.write_text(written)
            self.assertIn(f"'{option}' = 2", said)


class Training(VideoLlama3, ImageTraining, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
