"""The processor of Mistral 3, Pixtral and LightOnOCR folders."""
import json
import sys

from transformers.models.pixtral import image_processing_pil_pixtral

# The processor takes a function from the module of an image processor that needs torchvision; this one has the same.
sys.modules["transformers.models.pixtral.image_processing_pixtral"] = image_processing_pil_pixtral
from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor
from transformers.models.pixtral.processing_pixtral import PixtralProcessor


class Processor(PixtralProcessor):
    def check_argument_for_proper_class(self, *_):
        pass


class LightOnOcr(LightOnOcrProcessor):
    """With images of whole cells, which transformers makes where the image processor's `patch_size` is that of a cell."""

    def check_argument_for_proper_class(self, *_):
        pass

    def __call__(self, *inputs, **options):
        return super().__call__(*inputs, **options, images_kwargs={"patch_size": self.effective_patch_size})


def processor_of(folder, words):
    config = json.loads((folder / "processor_config.json").read_text())
    images = image_processing_pil_pixtral.PixtralImageProcessorPil.from_pretrained(folder)
    kind = Processor
    if config["processor_class"] == "LightOnOcrProcessor":
        kind = LightOnOcr
        for name, token in (("image", "[IMG]"), ("image_break", "[IMG_BREAK]"), ("image_end", "[IMG_END]")):
            setattr(words, f"{name}_token", token)
            setattr(words, f"{name}_token_id", words.convert_tokens_to_ids(token))
    return kind(images, words, patch_size=config["patch_size"], spatial_merge_size=config["spatial_merge_size"],
                chat_template=words.chat_template)
