"""Texts and pixels of samples against VideoLLaMA 3's processor of transformers: video_llama_3_processor_test.py SAMPLE_PROBE TEMPLATES. Equal to the
bit."""
import json
import unittest

import processor_test
from processor_test import alone, numpy, picture, said, tokenizer_with
from transformers.models.video_llama_3 import processing_video_llama_3
from transformers.models.video_llama_3.image_processing_pil_video_llama_3 import VideoLlama3ImageProcessorPil

TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% for part in message['content'] %}"
            "{% if part['type'] == 'image' %}{{ '<|image_pad|>\n' }}{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
            "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

VideoLlama3Processor = alone(processing_video_llama_3.VideoLlama3Processor)


class VideoLlama3(unittest.TestCase):
    processed = processor_test.Processors.processed

    def test_each_patch_is_a_cell_and_no_token_stands_around_those_of_an_image(self):
        words = tokenizer_with(TEMPLATE, image="<|image_pad|>", video="<|video_pad|>")
        words.image_token, words.video_token = "<|image_pad|>", "<|video_pad|>"
        samples = [*(([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(*size)])
                     for size in ((64, 48), (97, 31), (14, 14), (200, 190), (5, 7), (300, 9), (13, 1310))),
                   ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(70, 70), picture(90, 40)]),
                   ([said("user", "First ", None, " or this?"), said("assistant", "No."), said("user", "And ", None),
                     said("assistant", "It is late.")], [picture(40, 90), picture(60, 200)])]
        for least, most in ((1, 48), (12, 160), (80, 100)):
            images = VideoLlama3ImageProcessorPil(size={"shortest_edge": least * 14 * 14, "longest_edge": most * 14 * 14})
            processor = VideoLlama3Processor(images, words, None, TEMPLATE)
            lines, pixels, image = self.processed(processor, 14, 1, samples, "<|image_pad|>")
            at = 0
            for line, (messages, shown) in zip(lines, samples):
                theirs = processor(text=processor.apply_chat_template(messages, tokenize=False), images=[shown], return_tensors="np")
                self.assertEqual([image if token < 0 else token for token in json.loads(line)["ids"]], theirs["input_ids"][0].tolist())
                values = theirs["pixel_values"].ravel()
                self.assertTrue(numpy.array_equal(pixels[at:at + values.size], values), line)
                at += values.size
            self.assertEqual(at, pixels.size)


if __name__ == "__main__":
    unittest.main()
