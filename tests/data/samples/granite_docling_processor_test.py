"""What Granite Docling's processor makes of pictures and turns, beside transformers', and what Idefics3's makes of those of granite-docling-258M. The
arguments are those of processor_test.py."""
import unittest

import processor_test as shared
from transformers.models.granite_docling.image_processing_pil_granite_docling import GraniteDoclingImageProcessorPil
from transformers.models.granite_docling.processing_granite_docling import GraniteDoclingProcessor as WithTorchvision
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

# As it is published with granite-docling-258M.
DOCLING = ("{%- for message in messages -%}\n{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' -}}\n{%- if message['content'] is string -%}\n"
           "{{- message['content'] -}}\n{%- else -%}\n{%- for part in message['content'] -%}\n{%- if part['type'] == 'text' -%}\n{{- part['text'] -}}\n"
           "{%- elif part['type'] == 'image' -%}\n{{- '<image>' -}}\n{%- endif -%}\n{%- endfor -%}\n{%- endif -%}\n{{- '<|end_of_text|>\\n' -}}\n{%- endfor -%}\n"
           "{%- if add_generation_prompt -%}\n{{- '<|start_of_role|>assistant' -}}\n"
           "{%- if controls -%}{{- ' ' + controls | tojson() -}}{%- endif -%}\n{{- '<|end_of_role|>' -}}\n{%- endif -%}\n")
TOKENS = {f"token_{place}": token for place, token in enumerate(["<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"])}
ONE = [([shared.said("user", None, "Convert this page."), shared.said("assistant", "The moon.")], [shared.picture(*size)])
       for size in ((64, 48), (97, 31), (31, 97), (32, 32), (20, 21), (96, 90))]
OTHERS = [([shared.said("system", "You convert."), shared.said("user", "First ", None, " or this?"), shared.said("assistant", "No."), shared.said("user", "Why?"),
            shared.said("assistant", "It is late.")], [shared.picture(40, 90)]),
          ([shared.said("user", "Is this a page? ", None), shared.said("assistant", "Yes.")], [shared.picture(30, 30)])]

GraniteDoclingProcessor = shared.alone(WithTorchvision)


class GraniteDocling(unittest.TestCase):
    processed = shared.Processors.processed

    def test_granite_docling(self):
        several = [([shared.said("user", "First ", None, " or ", None, "?"), shared.said("assistant", "No."), shared.said("user", "And ", None, None),
                     shared.said("assistant", "Late.")], [shared.picture(70, 70), shared.picture(20, 20), shared.picture(90, 20), shared.picture(33, 30)])]
        for options in ({"max_patches": 6}, {"max_patches": 5, "min_patches": 2}, {"crop_to_patches": False},
                        {"max_patches": 4, "dense_max_patches": 6, "dense_min_aspect": 1.2}):
            images = GraniteDoclingImageProcessorPil(size={"height": 32, "width": 32}, **options)
            processor = GraniteDoclingProcessor(images, shared.tokenizer_with(DOCLING, **TOKENS), image_seq_len=5, chat_template=DOCLING)
            shared.Processors.expect_equal(self, processor, 32, 5, ONE + OTHERS + several)

    def test_granite_docling_258m(self):
        images = Idefics3ImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, resample=1)
        processor = Idefics3Processor(images, shared.tokenizer_with(DOCLING, **TOKENS), image_seq_len=5, chat_template=DOCLING)
        shared.Processors.expect_equal(self, processor, 32, 5, ONE + OTHERS)


if __name__ == "__main__":
    unittest.main()
