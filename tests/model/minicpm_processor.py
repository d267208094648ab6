"""The processor of MiniCPM-V 4.6 folders as transformers has it, with the image processor that needs no torchvision, in the place of that of videos
too, which is not called."""
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil as Images
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor


class Processor(MiniCPMV4_6Processor):
    def __init__(self, image_processor, video_processor, tokenizer, chat_template=None):
        super().__init__(image_processor, video_processor, tokenizer, chat_template=chat_template)

    def check_argument_for_proper_class(self, *_):
        pass


def processor_of(folder, words):
    images = Images.from_pretrained(folder)
    return Processor(images, images, words, words.chat_template)
