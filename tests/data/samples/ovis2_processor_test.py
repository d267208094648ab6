"""What Ovis2's processor makes of pictures and turns, beside transformers'. The arguments are those of processor_test.py."""
import json
import unittest

import processor_test as shared
import numpy
from transformers.models.ovis2.image_processing_pil_ovis2 import Ovis2ImageProcessorPil
from transformers.models.ovis2.processing_ovis2 import Ovis2Processor as WithTorchvision

OVIS2 = shared.INTERNVL.replace("<IMG_CONTEXT>", "<image>")
TOKENS = ["<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
OWN, ALL = 4, 9  # rows of a frame: its own, and behind them one for each token around an image and between its tiles

Ovis2Processor = shared.alone(WithTorchvision)


def frames_of(grids):
    """Which of our frames transformers has of each image, the whole image before its tiles."""
    images, first = [], 0
    for rows, columns in grids.tolist():
        tiles = rows * columns if rows * columns > 1 else 0
        images.append([first + tiles, *range(first, first + tiles)])
        first += tiles + 1
    return images


class Ovis2(unittest.TestCase):
    def expected_ids(self, words, ids, images):
        atom, *indicators = words.convert_tokens_to_ids(TOKENS)
        own, expected, shown = iter([frame * ALL + row for frame in sum(images, []) for row in range(OWN)]), [], iter(images)
        for token in ids:
            if token == indicators[0]:
                first = min(next(shown))
            row = next(own) if token == atom else first * ALL + OWN + indicators.index(token) if token in indicators else None
            expected.append(token if row is None else -16 - row)
        return expected

    def test_ovis2(self):
        """The tokens around an image and between its tiles are rows, too."""
        words = shared.tokenizer_with(OVIS2, **{f"token_{place}": token for place, token in enumerate(TOKENS)})
        samples = [*(([shared.said("user", None, "What is that?"), shared.said("assistant", "The moon.")], [shared.picture(*size)])
                     for size in ((64, 48), (97, 31), (31, 97), (32, 32), (20, 21), (96, 90))),
                   ([shared.said("user", "First ", None, " or ", None, "?"), shared.said("assistant", "No."), shared.said("user", "And ", None),
                     shared.said("assistant", "Late.")], [shared.picture(70, 70), shared.picture(20, 20), shared.picture(90, 20)])]
        for options in ({"max_patches": 9}, {"max_patches": 6, "use_covering_area_grid": False, "min_patches": 2}, {"crop_to_patches": False}):
            images = Ovis2ImageProcessorPil(**{"size": {"height": 32, "width": 32}, "crop_to_patches": True} | options)
            processor = Ovis2Processor(images, words, chat_template=words.chat_template, image_seq_length=OWN)
            lines, pixels, _ = shared.Processors.processed(self, processor, 32, ALL, samples)
            at = 0
            for line, (messages, pictures) in zip(lines, samples):
                theirs = processor(text=processor.apply_chat_template(messages, tokenize=False), images=[pictures], return_tensors="np")
                frames = frames_of(images(pictures, return_tensors="np")["grids"])
                values = numpy.empty_like(theirs["pixel_values"])
                values[sum(frames, [])] = theirs["pixel_values"]
                ours = json.loads(line)
                self.assertEqual(ours["ids"], self.expected_ids(words, theirs["input_ids"][0].tolist(), frames))
                self.assertEqual(ours["frames"], len(values))
                self.assertTrue(numpy.array_equal(pixels[at:at + values.size], values.ravel()), line)
                at += values.size
            self.assertEqual(at, pixels.size)


if __name__ == "__main__":
    unittest.main()
