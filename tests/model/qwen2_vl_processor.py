"""The processors of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and LFM3-VL folders; that of Qwen3.5 is Qwen3-VL's. Their own processors of videos need torchvision; here the processor of
images makes the pixels of each frame, and texts and times of videos are transformers'."""
import torch
from transformers import BatchFeature
from transformers.models.lfm3_vl.processing_lfm3_vl import Lfm3VlProcessor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.video_utils import VideoMetadata


class VideoProcessor:
    """Of frames that are a second apart. An odd one is shown twice."""
    merge_size = temporal_patch_size = 2
    model_input_names = ["pixel_values_videos", "video_grid_thw"]

    def __init__(self, images):
        self.images = images

    def __call__(self, videos, **_):
        values, grids, metadata = [], [], []
        for frames in videos:
            shown = [self.images(frame, return_tensors="pt") for frame in frames + frames[-1:] * (len(frames) % 2)]
            patches = torch.stack([one["pixel_values"] for one in shown]).unflatten(2, (3, 2, -1))[:, :, :, 0]  # of a still image all moments are equal
            values.append(patches.unflatten(0, (-1, 2)).permute(0, 2, 3, 1, 4).flatten(2).flatten(0, 1))
            grids.append([len(shown) // 2, *shown[0]["image_grid_thw"][0, 1:].tolist()])
            metadata.append(VideoMetadata(total_num_frames=len(frames), fps=1.0, frames_indices=list(range(len(frames)))))
        return BatchFeature({"pixel_values_videos": torch.cat(values), "video_grid_thw": torch.tensor(grids), "video_metadata": metadata})


def processor_of(folder, words, template, family="qwen2_vl", **limits):
    base = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor, "qwen3_vl_moe": Qwen3VLProcessor, "qwen3_5": Qwen3VLProcessor,
            "lfm3_vl": Lfm3VlProcessor}[family]
    kind = type("Processor", (base,), {"check_argument_for_proper_class": lambda *_: None})
    images = Qwen2VLImageProcessorPil.from_pretrained(folder, **limits)
    return kind(images, words, VideoProcessor(images), chat_template=template)
