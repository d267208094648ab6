"""The processors of MiniCPM-V and MiniCPM-OCR folders as transformers has them, with image processors that need no torchvision, in the place of that of
videos too, which is not called. MiniCPM-OCR's sizes and parts are transformers', and it is Pillow that resizes them, which differs from torchvision by
rounding."""
import json

import numpy
import torch
from PIL import Image
from transformers.image_utils import make_flat_list_of_images
from transformers.models.minicpm_ocr.image_processing_minicpm_ocr import MiniCPMOcrImageProcessor
from transformers.models.minicpm_ocr.processing_minicpm_ocr import MiniCPMOcrProcessor
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil as Images
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.minicpmv4_7.processing_minicpmv4_7 import MiniCPMV4_7Processor


def alone(processor):
    def begin(self, image_processor, video_processor, tokenizer, chat_template=None):
        processor.__init__(self, image_processor, video_processor, tokenizer, chat_template=chat_template)

    return type(processor.__name__, (processor,), {"__init__": begin, "check_argument_for_proper_class": lambda *_: None})


class OcrImages(MiniCPMOcrImageProcessor):
    def __init__(self, **own):
        self.own = {"image_processor_type": "MiniCPMOcrImageProcessor"} | own
        self.resample = Image.BICUBIC
        vars(self).update(own)

    def save_pretrained(self, folder):
        (folder / "preprocessor_config.json").write_text(json.dumps(self.own))

    def resize(self, image, size, resample):
        pixels = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((size.width, size.height), resample)
        return torch.from_numpy(numpy.array(pixels)).permute(2, 0, 1)

    def rescale_and_normalize(self, images, *_):
        half = numpy.float32(0.5)
        return torch.from_numpy(((images.numpy() * numpy.float64(1 / 255)).astype(numpy.float32) - half) / half)

    def __call__(self, images, return_tensors=None, **_):
        pixels = [torch.from_numpy(numpy.array(image.convert("RGB"))).permute(2, 0, 1) for image in make_flat_list_of_images(images)]
        names = ("max_slice_nums", "scale_resolution", "patch_size", "slice_mode", "small_image_upsize", "downsample_mode", "resample")
        return self._preprocess(pixels, do_resize=True, do_rescale=True, rescale_factor=None, do_normalize=True, image_mean=None, image_std=None,
                                return_tensors=return_tensors, disable_grouping=True, **{name: getattr(self, name) for name in names})


Processor, Processor47, OcrProcessor = (alone(kind) for kind in (MiniCPMV4_6Processor, MiniCPMV4_7Processor, MiniCPMOcrProcessor))
PROCESSORS = {"minicpmv4_6": Processor, "minicpmv4_7": Processor47, "minicpm_ocr": OcrProcessor}


def processor_of(folder, words, kind=Processor):
    if kind is OcrProcessor:
        own = json.loads((folder / "preprocessor_config.json").read_text())
        images = OcrImages(**{name: value for name, value in own.items() if name != "image_processor_type"})
    else:
        images = Images.from_pretrained(folder)
    return kind(images, images, words, words.chat_template)
