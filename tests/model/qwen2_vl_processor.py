"""The processor of a Qwen2-VL folder, without its processor of videos, which needs torchvision."""
from transformers.models.qwen2_vl import processing_qwen2_vl
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


class Processor(processing_qwen2_vl.Qwen2VLProcessor):
    def check_argument_for_proper_class(self, *_):
        pass


def processor_of(folder, words, template):
    return Processor(Qwen2VLImageProcessorPil.from_pretrained(folder), words, None, chat_template=template)
