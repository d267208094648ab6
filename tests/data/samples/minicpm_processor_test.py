"""What MiniCPM-V's and MiniCPM-OCR's processors make of pictures and turns, beside transformers'. The arguments are those of processor_test.py."""
import json
import unittest

import processor_test as shared
from processor_test import picture, said
import minicpm_processor
import numpy

AROUND = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "image_start_token": "<image>", "image_end_token": "</image>",
          "slice_start_token": "<slice>", "slice_end_token": "</slice>", "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>"}
SIZES = ((64, 48), (97, 31), (28, 28), (300, 190), (5, 7), (130, 150), (200, 60), (60, 210), (4, 300), (700, 3), (56, 56), (57, 56), (128, 96), (97, 96),
         (310, 290), (112, 112), (1, 1))
# With cells of 16, 8 and 12 pixels, among others.
OPTIONS = ({}, {"downsample_mode": "4x", "max_slice_nums": 4}, {"use_image_id": False, "patch_size": 3, "max_slice_nums": 2}, {"slice_mode": False},
           {"max_slice_nums": 16, "scale_resolution": 45, "resample": 2})


class MiniCpm(unittest.TestCase):
    def setUp(self):
        self.words = shared.tokenizer_with(shared.INTERNVL.replace("<IMG_CONTEXT>\n", "<|image_pad|>"), **AROUND)
        self.words.image_token, self.words.pad_token = "<|image_pad|>", self.words.eos_token
        question = [said("user", None, "What is that?"), said("assistant", "The moon.")]
        self.samples = [*((question, [picture(*size)]) for size in SIZES),
                        ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(210, 170), picture(90, 40)]),
                        ([said("user", "First ", None, " or ", None, "?"), said("assistant", "No."), said("user", "And ", None),
                          said("assistant", "It is late.")], [picture(40, 20), picture(30, 30), picture(80, 70)])]

    def expect_equal(self, kind, images):
        """Returns how many samples have parts."""
        processor = kind(images, images, self.words, self.words.chat_template)
        patch, merge = images.patch_size, 2 if images.downsample_mode == "4x" else 4
        lines, pixels, image = shared.Processors.processed(self, processor, patch * merge, 1, self.samples, "<|image_pad|>")
        at = cut = 0
        for line, (messages, shown) in zip(lines, self.samples):
            theirs = processor(text=processor.apply_chat_template(messages, tokenize=False), images=[shown], return_tensors="np")
            self.assertEqual([image if token < 0 else token for token in json.loads(line)["ids"]], theirs["input_ids"][0].tolist())
            cut += len(theirs["target_sizes"]) > len(shown)
            patches = theirs["pixel_values"][0].reshape(3, patch, -1, patch).transpose(2, 0, 1, 3)
            for height, width in theirs["target_sizes"]:
                own, patches = patches[:height * width], patches[height * width:]
                cells = own.reshape(height // merge, merge, width // merge, merge, 3, patch, patch).transpose(0, 2, 4, 1, 5, 3, 6)
                self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                at += cells.size
        self.assertEqual(at, pixels.size)
        return cut

    def test_minicpm(self):
        """Images grow and shrink to one area, and large ones are cut into parts besides, which are no squares; images of a text are numbered."""
        for number, options in enumerate(OPTIONS):
            with self.subTest(options):
                images = minicpm_processor.Images(**{"patch_size": 4, "scale_resolution": 56} | options)
                kind = (minicpm_processor.Processor, minicpm_processor.Processor47)[number % 2]
                self.assertEqual(self.expect_equal(kind, images) > 5, options.get("slice_mode", True))

    def test_minicpm_ocr(self):
        """The same, and small images may stay as small as they are."""
        for options in ({}, {"small_image_upsize": "never"}, {"small_image_upsize": "never", "downsample_mode": "16x", "max_slice_nums": 4},
                        {"small_image_upsize": "never", "slice_mode": False, "use_image_id": False}):
            with self.subTest(options):
                images = minicpm_processor.OcrImages(**{"patch_size": 4, "scale_resolution": 56} | options)
                self.assertEqual(self.expect_equal(minicpm_processor.OcrProcessor, images) > 5, options.get("slice_mode", True))


if __name__ == "__main__":
    unittest.main()
