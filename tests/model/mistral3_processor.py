"""The processor of Mistral 3 and Pixtral folders."""
import json
import sys

from transformers.models.pixtral import image_processing_pil_pixtral

# The processor takes a function from the module of an image processor that needs torchvision; this one has the same.
sys.modules["transformers.models.pixtral.image_processing_pixtral"] = image_processing_pil_pixtral
from transformers.models.pixtral.processing_pixtral import PixtralProcessor


class Processor(PixtralProcessor):
    def check_argument_for_proper_class(self, *_):
        pass


def processor_of(folder, words):
    config = json.loads((folder / "processor_config.json").read_text())
    images = image_processing_pil_pixtral.PixtralImageProcessorPil.from_pretrained(folder)
    return Processor(images, words, patch_size=config["patch_size"], spatial_merge_size=config["spatial_merge_size"],
                     chat_template=words.chat_template)
