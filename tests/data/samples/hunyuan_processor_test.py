"""What HunyuanOCR's processor makes of pictures and turns, beside transformers'. The arguments are those of processor_test.py."""
import json
import unittest

import processor_test as shared
import numpy
from transformers.models.hunyuan_vl import processing_hunyuan_vl
from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil

HUNYUAN = ("{{ bos_token }}{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
           "{{ '<｜hy_place▁holder▁no▁100｜><｜hy_place▁holder▁no▁102｜><｜hy_place▁holder▁no▁101｜>' }}{% elif part['type'] == 'text' %}{{ part['text'] }}"
           "{% endif %}{% endfor %}{{ {'system': '<｜hy_place▁holder▁no▁3｜>', 'user': '<｜hy_User｜>', 'assistant': '<｜hy_Assistant｜>'}[message['role']] }}{% endfor %}")

HunYuanVLProcessor = shared.alone(processing_hunyuan_vl.HunYuanVLProcessor)


class HunyuanOcr(unittest.TestCase):
    def test_hunyuan_ocr(self):
        """Images have rows besides those of their cells, and are resized alike whatever the config says. In ChatML the tokens around an image are added."""
        start, end, token = (f"<｜hy_place▁holder▁no▁{number}｜>" for number in (100, 101, 102))
        words = shared.tokenizer_with(HUNYUAN, image_start_token=start, image_end_token=end, image_token=token, pad_token="<｜hy_▁pad▁｜>",
                               begin="<｜hy_begin▁of▁sentence｜>", user="<｜hy_User｜>", assistant="<｜hy_Assistant｜>", system="<｜hy_place▁holder▁no▁3｜>")
        words.image_token, words.bos_token = token, "<｜hy_begin▁of▁sentence｜>"
        samples = [*(([shared.said("user", None, "Read it."), shared.said("assistant", "The moon.")], [shared.picture(*size)])
                     for size in ((64, 48), (97, 31), (32, 32), (200, 190), (5, 7), (300, 9), (13, 700), (31, 33), (48, 80))),
                   ([shared.said("user", None, None, "Which is the red one?"), shared.said("assistant", "The last.")], [shared.picture(70, 70), shared.picture(90, 40)]),
                   ([shared.said("system", "Read."), shared.said("user", None, "Table:"), shared.said("assistant", "No."), shared.said("user", "And ", None),
                     shared.said("assistant", "It is late.")], [shared.picture(40, 90), shared.picture(60, 200)])]
        for least, most in ((1, 12), (3, 40), (20, 25)):
            images = HunYuanVLImageProcessorPil(size={"shortest_edge": least * 32 * 32, "longest_edge": most * 32 * 32}, resample=1)
            processor = HunYuanVLProcessor(images, words, words.chat_template)
            lines, pixels, image = shared.Processors.processed(self, processor, 32, 4, samples, token)
            at = 0
            for line, (messages, shown) in zip(lines, samples):
                theirs = processor(text=processor.apply_chat_template(messages, tokenize=False), images=[shown], return_tensors="np")
                self.assertEqual([image if token < 0 else token for token in json.loads(line)["ids"]], theirs["input_ids"][0].tolist())
                first = 0
                for _, height, width in theirs["image_grid_thw"].tolist():
                    patches = theirs["pixel_values"][first:first + height * width].reshape(height // 2, 2, width // 2, 2, 3, 16, 16)
                    cells, first = patches.transpose(0, 2, 4, 1, 5, 3, 6), first + height * width
                    self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                    at += cells.size
            self.assertEqual(at, pixels.size)
        for line, (messages, shown) in zip(shared.Processors.processed(self, processor, 32, 4, samples, token, "chatml")[0], samples):
            ids = json.loads(line)["ids"]
            for around in (words.convert_tokens_to_ids(name) for name in (start, end)):
                self.assertEqual(ids.count(around), len(shown))


if __name__ == "__main__":
    unittest.main()
