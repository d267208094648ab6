"""Against the PIL-based image processors of transformers: image_processor_test.py MEDIA_PROBE. Equal to the bit."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

probe = sys.argv.pop(1)
try:
    import numpy
    from PIL import Image
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as glm_size
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.granite_docling.image_processing_pil_granite_docling import GraniteDoclingImageProcessorPil
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil, select_best_resolution
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
    from transformers.models.ovis2.image_processing_pil_ovis2 import Ovis2ImageProcessorPil
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
except ImportError as error:
    print(f"Skipped\nthe oracle is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

try:
    import torchvision  # which transformers' processors of videos need
except ImportError:
    torchvision = None

draw = numpy.random.default_rng(7)
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)


def picture(width, height, channels=3):
    """Smooth with some noise, as photographs are."""
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [128 + 60 * numpy.sin(x / (9 + 5 * c) + y / 23) + 50 * numpy.cos(y / (7 + 3 * c)) for c in range(channels)]
    noisy = numpy.stack(waves, -1) + draw.normal(0, 20, (height, width, channels))
    return numpy.clip(noisy, 0, 255).astype(numpy.uint8)


def saved(images):
    paths = []
    for image, options in images:
        paths.append(root / f"{len(list(root.iterdir()))}.png")
        image.save(paths[-1], **options)
    return paths


def rgb_of(*sizes):
    return saved([(Image.fromarray(picture(width, height)), {}) for width, height in sizes])


def all_modes():
    rgb, rgba = Image.fromarray(picture(83, 61)), Image.fromarray(picture(83, 61, 4), "RGBA")
    gray = rgb.convert("L")
    images = [(image, {}) for image in (rgba, gray, rgba.convert("LA"), rgb.convert("1"), rgb.quantize(200))]
    return saved(images + [(rgb.quantize(16), {"transparency": 3}), (rgb, {"transparency": tuple(picture(83, 61)[0, 0])}),
                           (gray, {"transparency": 90}),
                           (rgb.quantize(8), {"transparency": bytes([0, 40, 255, 128, 7, 200, 90, 1])})])


def folder_of(config):
    """A folder with a preprocessor_config.json, as published (a dict) or as transformers saves it (a processor)."""
    folder = root / f"folder-{len(list(root.iterdir()))}"
    folder.mkdir()
    if isinstance(config, dict):
        (folder / "preprocessor_config.json").write_text(json.dumps(config))
    else:
        config.save_pretrained(folder)
    return folder


def process(folder, paths):
    """(rows, columns, frames [n, 3, height, width]) of each picture."""
    out = root / "out.bin"
    done = subprocess.run([str(word) for word in (probe, "process", folder, out, *paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    raw, made, at = out.read_bytes(), [], 0
    for _ in paths:
        frames, rows, columns, height, width = (int(n) for n in numpy.frombuffer(raw, numpy.int32, 5, at))
        count = frames * 3 * height * width
        values = numpy.frombuffer(raw, numpy.float32, count, at + 20)
        made.append((rows, columns, values.reshape(frames, 3, height, width)))
        at += 20 + 4 * count
    assert at == len(raw)
    return made


CLIP_336 = {"crop_size": 336, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3,
            "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711], "size": 336}
DINOV2 = {"crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_convert_rgb": True,
          "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.485, 0.456, 0.406],
          "image_processor_type": "BitImageProcessor", "image_std": [0.229, 0.224, 0.225], "resample": 3,
          "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 256}}
SMOLVLM_256M = {"do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True,
                "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
                "image_processor_type": "Idefics3ImageProcessor", "image_std": [0.5, 0.5, 0.5],
                "max_image_size": {"longest_edge": 512}, "processor_class": "Idefics3Processor", "resample": 1,
                "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 2048}}
INTERNVL3 = {"crop_size": None, "crop_to_patches": False, "data_format": "channels_first", "default_to_square": True, "device": None,
             "disable_grouping": None, "do_center_crop": None, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True,
             "do_resize": True, "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "GotOcr2ImageProcessorFast",
             "image_std": [0.229, 0.224, 0.225], "input_data_format": None, "max_patches": 12, "min_patches": 1,
             "processor_class": "InternVLProcessor", "resample": 3, "rescale_factor": 0.00392156862745098, "return_tensors": None,
             "size": {"height": 448, "width": 448}}
OVIS2 = {"crop_to_patches": True, "default_to_square": True, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
         "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "Ovis2ImageProcessor",
         "image_std": [0.26862954, 0.26130258, 0.27577711], "max_patches": 12, "min_patches": 1, "processor_class": "Ovis2Processor", "resample": 3,
         "rescale_factor": 0.00392156862745098, "size": {"height": 448, "width": 448}, "use_covering_area_grid": True}
LLAVA_NEXT = {"aspect_ratio_setting": "anyres", "crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "do_convert_rgb": True,
              "do_normalize": True, "do_rescale": True, "do_resize": True,
              "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
              "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "LlavaNextImageProcessor",
              "image_std": [0.26862954, 0.26130258, 0.27577711], "processor_class": "LlavaNextProcessor", "resample": 3,
              "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 336}}
LLAVA_ONEVISION = {"do_convert_rgb": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True,
                   "image_grid_pinpoints": [[384 * y, 384 * x] for y in range(1, 7) for x in range(1, 7)], "image_mean": [0.5, 0.5, 0.5],
                   "image_processor_type": "LlavaOnevisionImageProcessor", "image_std": [0.5, 0.5, 0.5],
                   "processor_class": "LlavaOnevisionProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
                   "size": {"height": 384, "width": 384}}
QWEN2_VL = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
            "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
            "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"}
OF_VIDEOS = {"do_resize": True, "patch_size": 8, "merge_size": 2, "temporal_patch_size": 2}
QWEN2_VIDEOS = OF_VIDEOS | {"video_processor_type": "Qwen2VLVideoProcessor", "size": {"shortest_edge": 1000, "longest_edge": 20000},
                            "max_video_tokens": 300}
QWEN3_VIDEOS = OF_VIDEOS | {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 1000, "longest_edge": 60000},
                            "max_video_tokens": 20}
# Rows and columns of cells that transformers 5.23 makes of frames of a size, for each number of frames.
VIDEO_SIZES, VIDEO_FRAMES = [(160, 90), (90, 160), (31, 97), (16, 16), (7, 9), (640, 480)], [2, 3, 7, 16, 41]
VIDEO_CELLS = {
    ("qwen2", False): [[(6, 10), (6, 10), (6, 10), (6, 10), (6, 10)],
        [(10, 6), (10, 6), (10, 6), (10, 6), (10, 6)],
        [(6, 2), (6, 2), (6, 2), (6, 2), (6, 2)],
        [(2, 2), (2, 2), (2, 2), (2, 2), (2, 2)],
        [(3, 2), (3, 2), (3, 2), (3, 2), (3, 2)],
        [(7, 10), (7, 10), (7, 10), (7, 10), (7, 10)]],
    ("qwen2", True): [[(6, 10), (6, 10), (6, 10), (4, 7), (2, 4)],
        [(10, 6), (10, 6), (10, 6), (7, 4), (4, 2)],
        [(6, 2), (6, 2), (6, 2), (6, 2), (6, 2)],
        [(2, 2), (2, 2), (2, 2), (2, 2), (2, 2)],
        [(3, 2), (3, 2), (3, 2), (3, 2), (3, 2)],
        [(7, 10), (7, 10), (7, 10), (5, 6), (3, 4)]],
    ("qwen3", False): [[(6, 10), (6, 11), (4, 7), (2, 5), (1, 3)],
        [(10, 6), (11, 6), (7, 4), (5, 2), (3, 1)],
        [(6, 2), (6, 2), (6, 2), (6, 2), (4, 1)],
        [(2, 2), (1, 1), (1, 1), (1, 1), (1, 1)],
        [(2, 2), (1, 1), (1, 1), (1, 1), (1, 1)],
        [(9, 12), (7, 10), (5, 6), (3, 4), (2, 2)]],
    ("qwen3", True): [[(3, 5), (3, 5), (3, 5), (2, 5), (1, 3)],
        [(5, 3), (5, 3), (5, 3), (5, 2), (3, 1)],
        [(6, 2), (6, 2), (6, 2), (6, 2), (4, 1)],
        [(2, 2), (1, 1), (1, 1), (1, 1), (1, 1)],
        [(2, 2), (1, 1), (1, 1), (1, 1), (1, 1)],
        [(3, 5), (3, 5), (3, 5), (3, 4), (2, 2)]],
}
ODD = [(337, 251), (251, 337), (640, 480), (31, 97), (224, 224), (225, 224), (1, 1), (7, 300), (500, 31)]


OF_IMAGES = {key: OF_VIDEOS[key] for key in ("patch_size", "merge_size", "temporal_patch_size")} | {
    "image_processor_type": "Qwen2VLImageProcessor", "image_mean": CLIP_336["image_mean"], "image_std": CLIP_336["image_std"]}


def video_folder(config):
    """The images have the values that the videos have."""
    values = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
    folder = folder_of(OF_IMAGES | values)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(values | config))
    return folder


def probed(*words, code=0):
    done = subprocess.run([str(word) for word in (probe, *words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def oracle_of(config):
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    kinds = {kind.__name__: kind for kind in (Qwen2VLVideoProcessor, Qwen3VLVideoProcessor)}
    options = {key: value for key, value in config.items() if key != "video_processor_type"}
    return kinds[config["video_processor_type"]](image_mean=CLIP_336["image_mean"], image_std=CLIP_336["image_std"], do_sample_frames=False,
                                                 **options)


def theirs_of(oracle, width, height, frames):
    grid = oracle(videos=[numpy.zeros((frames, 3, height, width), numpy.uint8)], return_tensors="np")["video_grid_thw"][0]
    return int(grid[1]) // 2, int(grid[2]) // 2


class ImageProcessors(unittest.TestCase):
    def expect_equal(self, oracle, paths, config=None):
        made = process(folder_of(config or oracle), paths)
        for path, (rows, columns, ours) in zip(paths, made):
            with Image.open(path) as image:
                said = oracle(image, return_tensors="np")
                name = f"{type(oracle).__name__} {image.mode} {image.size} {image.info}"
            theirs = said["pixel_values"]
            theirs = theirs[0] if theirs.ndim == 5 else theirs
            if isinstance(oracle, (LlavaNextImageProcessorPil, LlavaOnevisionImageProcessorPil, Ovis2ImageProcessorPil)):  # which has the whole image first
                theirs = numpy.roll(theirs, -1, axis=0)
            with self.subTest(name):
                self.assertEqual(ours.shape, theirs.shape)
                self.assertEqual(float(numpy.abs(ours - theirs).max()), 0, "largest difference")
                if "grids" in said:
                    self.assertEqual((rows, columns) if rows else (1, 1), tuple(said["grids"][0]))
                if "rows" in said:
                    uncut = (1, 1) if isinstance(oracle, GraniteDoclingImageProcessorPil) else (0, 0)
                    self.assertEqual((rows, columns) if rows else uncut, (said["rows"][0][0], said["cols"][0][0]))

    def expect_cells(self, oracle, paths, config=None):
        """Each frame is a cell of merge_size x merge_size patches, which transformers writes line by line, each pixel twice."""
        merge, patch = oracle.merge_size, oracle.patch_size
        for path, (rows, columns, ours) in zip(paths, process(folder_of(config or oracle), paths)):
            with Image.open(path) as image:
                said = oracle(image, return_tensors="np")
                name = f"{config or oracle.size} {image.mode} {image.size}"
            with self.subTest(name):
                self.assertEqual([1, rows * merge, columns * merge], said["image_grid_thw"][0].tolist())
                patches = ours.reshape(-1, 3, merge, patch, merge, patch).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 3, 1, patch, patch)
                theirs = said["pixel_values"].reshape(-1, 3, oracle.temporal_patch_size, patch, patch)
                self.assertEqual(float(numpy.abs(patches - theirs).max()), 0, "largest difference")

    def test_cells_of_pixtral(self):
        sizes = [(640, 480), (337, 251), (28, 28), (42, 70), (1, 1), (7, 300), (500, 31), (13, 1000), (1200, 900), (61, 1540), (1541, 1540)]
        for config in ({"size": {"longest_edge": 1540}, "patch_size": 14}, {}, {"size": {"height": 200, "width": 500}, "patch_size": 5},
                       {"size": 333, "patch_size": {"height": 28, "width": 28}, "do_normalize": False, "resample": 2, "do_pad": False}):
            config = {"image_processor_type": "PixtralImageProcessorFast", **config}
            oracle = PixtralImageProcessorPil.from_dict(config)
            paths = rgb_of(*sizes) + (all_modes() if len(config) == 1 else [])
            for path, (rows, columns, ours) in zip(paths, process(folder_of(config), paths)):
                with Image.open(path) as image:
                    said = oracle(image, return_tensors="np")
                    name = f"{config} {image.mode} {image.size}"
                with self.subTest(name):
                    side = ours.shape[-1]
                    self.assertEqual([rows * side, columns * side], list(said["image_sizes"][0]))
                    whole = ours.reshape(rows, columns, 3, side, side).transpose(2, 0, 3, 1, 4).reshape(3, rows * side, columns * side)
                    self.assertEqual(float(numpy.abs(whole - said["pixel_values"][0]).max()), 0, "largest difference")

    def test_cells_of_qwen2_vl(self):
        sizes = [(640, 480), (337, 251), (28, 28), (42, 70), (70, 42), (1, 1), (7, 300), (500, 31), (13, 1000), (14, 42), (1200, 900)]
        paths = rgb_of(*sizes)
        self.expect_cells(Qwen2VLImageProcessorPil.from_dict(QWEN2_VL), paths, QWEN2_VL)
        self.expect_cells(Qwen2VLImageProcessorPil(), paths)
        for options in ({"size": {"shortest_edge": 784, "longest_edge": 28 * 28 * 6}}, {"size": {"shortest_edge": 40000, "longest_edge": 50000}},
                        {"patch_size": 8, "merge_size": 3}, {"merge_size": 1, "resample": 1}, {"do_normalize": False},
                        {"size": {"shortest_edge": 1, "longest_edge": 10**6}, "temporal_patch_size": 1}):
            self.expect_cells(Qwen2VLImageProcessorPil(**options), paths)
        both = {**QWEN2_VL, "size": {"shortest_edge": 9, "longest_edge": 10}, "max_pixels": 28 * 28 * 9}
        self.expect_cells(Qwen2VLImageProcessorPil.from_dict({**QWEN2_VL, "max_pixels": 28 * 28 * 9}), paths, both)
        self.expect_cells(Qwen2VLImageProcessorPil(), all_modes())

    def test_cells_of_videos(self):
        """Of the processors of Qwen2-VL and Qwen3-VL, without and with a limit for the whole video."""
        for name, config in (("qwen2", QWEN2_VIDEOS), ("qwen3", QWEN3_VIDEOS)):
            for capped in (False, True):
                config = config | {"cap_pixels_per_frame": capped}
                folder, oracle = video_folder(config), None
                if torchvision:
                    oracle = oracle_of(config)
                    found = [[theirs_of(oracle, width, height, frames) for frames in VIDEO_FRAMES] for width, height in VIDEO_SIZES]
                    self.assertEqual(VIDEO_CELLS[name, capped], found)
                for (width, height), expected in zip(VIDEO_SIZES, VIDEO_CELLS[name, capped]):
                    for frames, cells in zip(VIDEO_FRAMES, expected):
                        with self.subTest(name, capped=capped, size=(width, height), frames=frames):
                            ours = [line.split() for line in probed("cells", folder, width, height, frames).splitlines()]
                            steps, pairs = (frames + 1) // 2, [range(frames)[place:place + 2] for place in range(0, frames, 2)]
                            shown = [steps] if name == "qwen2" else [1] * steps
                            labels = [-1] if name == "qwen2" else [(pair[0] + pair[-1]) / 2 for pair in pairs]
                            self.assertEqual(ours, [[*map(str, cells), str(of), "2", f"{label:g}"] for of, label in zip(shown, labels)])

    def test_cells_of_videos_of_glm(self):
        """Whose frames are even in number, the last one is there twice otherwise. A step is shown when its first frame is."""
        for family, least, most in (("Glm4v", 1000, 60000), ("Glm46V", 30000, 30000)):
            folder = folder_of(OF_IMAGES | {"image_processor_type": f"{family}ImageProcessor"})
            (folder / "video_preprocessor_config.json").write_text(json.dumps(OF_VIDEOS | {
                "video_processor_type": f"{family}VideoProcessor", "size": {"shortest_edge": least, "longest_edge": most}, "max_image_size": {"longest_edge": 9}}))
            for width, height in VIDEO_SIZES:
                for frames in [1, *VIDEO_FRAMES]:
                    with self.subTest(family, size=(width, height), frames=frames):
                        rows, columns = (side // 16 for side in glm_size(frames + frames % 2, height, width, factor=16, min_pixels=least, max_pixels=most))
                        ours = [line.split() for line in probed("cells", folder, width, height, frames).splitlines()]
                        self.assertEqual([cells[:3] + cells[4:] for cells in ours], [[str(rows), str(columns), "1", str(first)] for first in range(0, frames, 2)])

    def test_pixels_of_videos(self):
        """Those of transformers' PIL-based image processor, and but for rounding those that torchvision resizes for its processors of videos."""
        for config in (QWEN2_VIDEOS, QWEN3_VIDEOS | {"size": {"shortest_edge": 1000, "longest_edge": 20000}}):
            for count, size in ((3, (83, 61)), (4, (40, 120))):
                paths, folder = rgb_of(*[size] * count), video_folder(config)
                rows, columns = map(int, probed("cells", folder, *size, count).split()[:2])
                probed("video", folder, root / "video.bin", *paths)
                ours = numpy.fromfile(root / "video.bin", numpy.float32).reshape(-1, rows, columns, 3, 16, 16)
                self.assertEqual(len(ours), count + count % 2)
                exact = Qwen2VLImageProcessorPil.from_dict(OF_IMAGES | {"size": {"shortest_edge": 1, "longest_edge": 10**9}})
                pictures = [Image.open(path) for path in paths]
                for place, frame in enumerate(ours):
                    shown = pictures[min(place, count - 1)].resize((16 * columns, 16 * rows), Image.BICUBIC)
                    patches = exact(shown, return_tensors="np")["pixel_values"].reshape(rows, columns, 2, 2, 3, 2, 8, 8)[:, :, :, :, :, 0]
                    theirs = patches.transpose(0, 1, 4, 2, 5, 3, 6).reshape(frame.shape)
                    self.assertEqual(float(numpy.abs(frame - theirs).max()), 0, "largest difference")
                if torchvision:
                    video = numpy.stack([numpy.asarray(picture).transpose(2, 0, 1) for picture in pictures])
                    said = oracle_of(config)(videos=[video], return_tensors="np")["pixel_values_videos"]
                    patches = said.reshape(-1, rows, columns, 2, 2, 3, 2, 8, 8).transpose(0, 6, 1, 2, 5, 3, 7, 4, 8)
                    off = numpy.abs(patches.reshape(ours.shape) - ours) * 255 * 0.27
                    self.assertLess(off.max(), 2.1, "levels")
                    self.assertLess(off.mean(), 0.02, "levels")

    def test_videos_that_images_do_not_go_with_are_refused(self):
        for change, said in (({"patch_size": 4}, "videos are prepared with another patch_size"),
                             ({"image_mean": [0.5] * 3}, "videos are prepared with another patch_size"),
                             ({"video_processor_type": "LlavaOnevisionVideoProcessor"}, "the video processor 'LlavaOnevisionVideoProcessor' is not supported"),
                             ({"max_video_tokenz": 3}, "did you mean 'max_video_tokens'?"),
                             ({"cap_pixels_per_frame": 3}, "'cap_pixels_per_frame' is 3")):
            with self.subTest(change):
                self.assertIn(said, probed("cells", video_folder(QWEN2_VIDEOS | change), 16, 16, 2, code=4))
        folder = video_folder(QWEN2_VIDEOS)
        (folder / "video_preprocessor_config.json").unlink()
        self.assertEqual(probed("cells", folder, 160, 90, 2).split()[:2], ["15", "27"])  # as Qwen2-VL's processor has it by default
        nested = {"video_processor": QWEN2_VIDEOS | {"size": {"shortest_edge": 1, "longest_edge": 256 * 4}}, "image_processor": OF_IMAGES}
        (folder / "processor_config.json").write_text(json.dumps(nested))
        self.assertEqual(probed("cells", folder, 160, 90, 2).split()[:2], ["1", "2"])

    def test_published_configs(self):
        paths = rgb_of(*ODD)
        self.expect_equal(CLIPImageProcessorPil.from_dict(CLIP_336), paths, CLIP_336)
        self.expect_equal(BitImageProcessorPil.from_dict(DINOV2), paths, DINOV2)
        self.expect_equal(SiglipImageProcessorPil(size={"height": 384, "width": 384}), paths)
        self.expect_equal(Gemma3ImageProcessorPil(size={"height": 896, "width": 896}), paths)

    def test_images_in_the_middle_of_a_square(self):
        paths = rgb_of(*ODD, (333, 332), (20, 380), (385, 2))
        for options in ({}, {"size": {"height": 61, "width": 61}, "min_size": 20}, {"resample": 1}, {"do_normalize": False}, {"do_rescale": False},
                        {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 0.5, 2]}):
            self.expect_equal(DeepseekVLImageProcessorPil(**options), paths)
        self.expect_equal(DeepseekVLImageProcessorPil(), paths, {"image_processor_type": "DeepseekVLImageProcessor", "background_color": [1, 2, 3]})
        for option, value in (("do_pad", False), ("do_resize", False), ("do_center_crop", True), ("min_size", 385), ("size", {"height": 9, "width": 10})):
            with self.subTest(option):
                folder = folder_of({"image_processor_type": "DeepseekVLImageProcessor", option: value})
                self.assertIn(f"'{option}'", probed("process", folder, root / "refused.bin", *paths[:1], code=4))

    def test_defaults_and_every_option(self):
        paths = rgb_of((337, 251), (60, 97))
        self.expect_equal(Gemma3ImageProcessorPil(), paths, {"image_processor_type": "Gemma3ImageProcessor"})
        for kind in (CLIPImageProcessorPil, BitImageProcessorPil, SiglipImageProcessorPil, LlavaImageProcessorPil):
            self.expect_equal(kind(), paths)
            self.expect_equal(kind(), paths, {"image_processor_type": kind.__name__[:-3]})
            for options in ({"resample": 1}, {"resample": 2}, {"do_rescale": False}, {"do_normalize": False},
                            {"rescale_factor": 1 / 127.5}, {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 0.5, 2]},
                            {"size": {"shortest_edge": 100}, "do_center_crop": False},
                            {"size": {"height": 90, "width": 151}, "crop_size": {"height": 91, "width": 64},
                             "do_center_crop": True},
                            {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 98, "width": 95}}):
                self.expect_equal(kind(**options), paths)

    def test_center_crop_of_an_image_that_is_smaller(self):
        paths = rgb_of((30, 41), (41, 30), (400, 7))
        for height, width in ((64, 65), (65, 64), (35, 35), (20, 90)):
            crop = {"height": height, "width": width}
            self.expect_equal(CLIPImageProcessorPil(do_resize=False, crop_size=crop), paths)

    def test_llava_pads_to_a_square_with_the_mean_color(self):
        paths = rgb_of(*ODD)
        self.expect_equal(LlavaImageProcessorPil(do_pad=True, size={"shortest_edge": 56}, crop_size=56), paths)
        self.expect_equal(LlavaImageProcessorPil(do_pad=True, do_normalize=False, image_mean=[0, 0.5, 1]), paths[:3])

    def test_gray_palette_and_alpha(self):
        paths = all_modes()
        self.expect_equal(CLIPImageProcessorPil(), paths)
        self.expect_equal(CLIPImageProcessorPil(do_resize=False, do_center_crop=False), paths)

    def test_tiles(self):
        sizes = [(640, 480), (97, 31), (31, 97), (64, 64), (65, 64), (300, 7), (1, 1), (1, 300), (128, 128), (127, 129)]
        paths = rgb_of(*sizes)
        for kind in (Idefics3ImageProcessorPil, SmolVLMImageProcessorPil):
            for options in ({}, {"do_image_splitting": False}, {"do_resize": False},
                            {"size": {"height": 100, "width": 70}}, {"size": {"longest_edge": 64}},
                            {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 1024}}):
                settings = {"size": {"longest_edge": 256}, "max_image_size": {"longest_edge": 64}, **options}
                some = paths[:2] if settings["size"].get("longest_edge") == 5000 else paths
                self.expect_equal(kind(return_row_col_info=True, **settings), some)

    def test_patches_of_internvl(self):
        sizes = [(640, 480), (97, 31), (31, 97), (64, 64), (65, 64), (300, 7), (1, 1), (1, 300), (128, 128), (127, 129), (100, 50), (199, 101)]
        paths = rgb_of(*sizes)
        size = {"height": 64, "width": 64}
        for options in ({}, {"max_patches": 4}, {"min_patches": 3, "max_patches": 6}, {"max_patches": 1}, {"resample": 1},
                        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}, {"crop_to_patches": False}):
            self.expect_equal(GotOcr2ImageProcessorPil(**({"size": size, "crop_to_patches": True} | options)), paths)

    def test_tiles_of_granite_docling(self):
        """Of spreads more than of other pages, where the folder says so, and none of more than 16 lines or columns."""
        sizes = ODD + [(97, 31), (31, 97), (64, 64), (65, 64), (300, 7), (1, 300), (640, 213), (2000, 1), (8, 900), (50, 49), (320, 100), (300, 200), (33, 32)]
        for options in ({}, {"max_patches": 9}, {"max_patches": 1}, {"crop_to_patches": False}, {"min_patches": 3, "max_patches": 7},
                        {"max_patches": 4, "dense_max_patches": 12, "dense_max_scale": 0.5},
                        {"max_patches": 4, "dense_max_patches": 12, "dense_min_aspect": 1.3, "dense_max_aspect": 3.2},
                        {"max_patches": 4, "dense_max_patches": 9, "dense_max_scale": 0.3, "dense_min_aspect": 1.4},
                        {"max_patches": 4, "dense_max_patches": 9, "dense_max_aspect": 2.0}, {"crop_to_patches": False, "dense_max_patches": 9, "dense_max_scale": 9.0}):
            paths = rgb_of(*sizes) + (all_modes() if not options else [])
            self.expect_equal(GraniteDoclingImageProcessorPil(**({"size": {"height": 32, "width": 32}} | options)), paths)
        folder = folder_of({"image_processor_type": "GraniteDoclingImageProcessor", "size": {"height": 32, "width": 32}, "fine_route": True})
        with self.assertRaisesRegex(AssertionError, "'fine_route' = true.*only false is"):
            process(folder, rgb_of((32, 32)))
        self.expect_equal(GraniteDoclingImageProcessorPil(), rgb_of((640, 480), (1700, 2200)), {"image_processor_type": "GraniteDoclingImageProcessor"})

    def test_tiles_of_ovis2(self):
        sizes = ODD + [(97, 31), (31, 97), (64, 64), (65, 64), (300, 7), (1, 300), (128, 128), (127, 129), (100, 50), (199, 101), (96, 191),
                       (640, 213), (213, 640), (2000, 1), (33, 32), (50, 49), (5, 90), (320, 3)]
        for options in ({}, {"max_patches": 9}, {"max_patches": 1}, {"max_patches": 2, "resample": 2}, {"crop_to_patches": False},
                        {"use_covering_area_grid": False}, {"use_covering_area_grid": False, "min_patches": 3, "max_patches": 7}):
            paths = rgb_of(*sizes) + (all_modes() if not options else [])
            self.expect_equal(Ovis2ImageProcessorPil(**({"size": {"height": 32, "width": 32}, "crop_to_patches": True} | options)), paths)

    def test_ovis2_as_published(self):
        oracle = Ovis2ImageProcessorPil.from_dict(OVIS2)
        self.expect_equal(oracle, rgb_of((640, 480), (448, 448), (300, 900), (1500, 1000)), OVIS2)

    def test_internvl_as_published(self):
        """Its own processor cuts images, though its image processor by itself does not."""
        oracle = GotOcr2ImageProcessorPil.from_dict({**INTERNVL3, "crop_to_patches": True})
        paths = rgb_of((640, 480), (251, 337), (900, 300))
        self.expect_equal(oracle, paths, INTERNVL3)
        config = {key: value for key, value in INTERNVL3.items() if key != "processor_class"}
        self.expect_equal(GotOcr2ImageProcessorPil.from_dict(config), paths, config)
        for kind in ("InternVLProcessor", "QianfanOCRProcessor"):
            folder = folder_of(config)
            (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 256, "processor_class": kind}))
            self.assertEqual([made[:2] for made in process(folder, paths)], [(3, 4), (4, 3), (1, 3)], kind)

    def expect_grids(self, oracle, sizes, config=None):
        paths = rgb_of(*sizes)
        self.expect_equal(oracle, paths, config)
        for (width, height), (rows, columns, frames) in zip(sizes, process(folder_of(config or oracle), paths)):
            best, tile = select_best_resolution((height, width), oracle.image_grid_pinpoints), frames.shape[-1]
            self.assertEqual((rows * tile, columns * tile), best, (width, height))

    def test_grids_of_llava_next(self):
        sizes = ODD + [(97, 31), (31, 97), (64, 64), (65, 64), (300, 7), (1, 300), (128, 128), (127, 129), (100, 50), (199, 101), (96, 191),
                       (640, 213), (213, 640), (2000, 1), (33, 32), (50, 49)]
        size = {"size": {"shortest_edge": 32}, "crop_size": 32}
        two, four = [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]], [[32 * y, 32 * x] for y in (1, 2, 3, 4) for x in (1, 2, 3, 4)]
        for options in ({}, {"image_grid_pinpoints": four}, {"image_grid_pinpoints": [[32, 32]]}, {"resample": 2}, {"do_pad": False},
                        {"size": {"height": 32, "width": 32}, "do_center_crop": False}, {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}):
            self.expect_grids(LlavaNextImageProcessorPil(**({"image_grid_pinpoints": two} | size | options)), sizes)

    def test_grids_of_llava_onevision(self):
        sizes = [(97, 31), (31, 97), (32, 32), (33, 32), (300, 7), (1, 300), (128, 128), (199, 101), (1, 1)]
        self.expect_grids(LlavaOnevisionImageProcessorPil(size={"height": 32, "width": 32},
                                                          image_grid_pinpoints=[[32 * y, 32 * x] for y in (1, 2, 3) for x in (1, 2, 3)]), sizes)
        self.expect_grids(LlavaOnevisionImageProcessorPil(), [(640, 480), (1500, 700)])
        self.expect_grids(LlavaOnevisionImageProcessorPil.from_dict(LLAVA_ONEVISION), [(251, 337)], LLAVA_ONEVISION)

    def test_llava_next_as_published(self):
        self.expect_grids(LlavaNextImageProcessorPil.from_dict(LLAVA_NEXT), [(640, 480), (251, 337), (900, 300)], LLAVA_NEXT)

    def test_smolvlm_as_published(self):
        oracle = Idefics3ImageProcessorPil.from_dict({**SMOLVLM_256M, "return_row_col_info": True})
        self.expect_equal(oracle, rgb_of((640, 480), (251, 337)), SMOLVLM_256M)

    def test_a_processor_config_goes_first(self):
        folder = folder_of(CLIP_336)
        nested = {"processor_class": "X", "image_processor": {**DINOV2, "crop_size": None}}
        (folder / "processor_config.json").write_text(json.dumps(nested))
        paths = rgb_of((300, 200))
        with Image.open(paths[0]) as image:
            theirs = BitImageProcessorPil.from_dict(DINOV2)(image, return_tensors="np")["pixel_values"]
        self.assertEqual(float(numpy.abs(process(folder, paths)[0][2] - theirs).max()), 0)


if __name__ == "__main__":
    unittest.main()
