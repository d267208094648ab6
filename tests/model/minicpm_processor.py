"""The processors of MiniCPM-V folders as transformers has them, with the image processor that needs no torchvision, in the place of that of videos
too, which is not called."""
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil as Images
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.minicpmv4_7.processing_minicpmv4_7 import MiniCPMV4_7Processor


def alone(processor):
    def begin(self, image_processor, video_processor, tokenizer, chat_template=None):
        processor.__init__(self, image_processor, video_processor, tokenizer, chat_template=chat_template)

    return type(processor.__name__, (processor,), {"__init__": begin, "check_argument_for_proper_class": lambda *_: None})


Processor, Processor47 = alone(MiniCPMV4_6Processor), alone(MiniCPMV4_7Processor)
PROCESSORS = {"minicpmv4_6": Processor, "minicpmv4_7": Processor47}


def processor_of(folder, words, kind=Processor):
    images = Images.from_pretrained(folder)
    return kind(images, images, words, words.chat_template)
