"""Against Pillow: pillow_test.py MEDIA_PROBE. Decoding is equal to the bit, and so is resizing."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

probe = sys.argv.pop(1)
try:
    import numpy
    from PIL import Image, ImageOps
except ImportError as error:
    print(f"Skipped\nPillow is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

draw = numpy.random.default_rng(5)
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)


def picture(width, height, channels=3):
    """Smooth with some noise, as photographs are."""
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [128 + 60 * numpy.sin(x / (9 + 5 * c) + y / 23) + 50 * numpy.cos(y / (7 + 3 * c)) for c in range(channels)]
    noisy = numpy.stack(waves, -1) + draw.normal(0, 8, (height, width, channels))
    return numpy.clip(noisy, 0, 255).astype(numpy.uint8)


def file_of(image, suffix, **options):
    path = folder / f"{len(list(folder.iterdir()))}.{suffix}"
    image.save(path, **options)
    return path


def decode(paths, width=0, height=0, scaled=0):
    """What the engine makes of the files: arrays, None for what it refuses; and what it said."""
    out = folder / "out.bin"
    command = [probe, "decode", out, width, height, scaled, *paths]
    said = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    assert not said.stderr, said.stderr
    raw, pictures, at = out.read_bytes(), [], 0
    for _ in paths:
        w, h = numpy.frombuffer(raw, numpy.int32, 2, at)
        at += 8
        size = max(int(w), 0) * int(h) * 3
        pictures.append(numpy.frombuffer(raw, numpy.uint8, size, at).reshape(h, w, 3) if size > 0 else None)
        at += max(size, 0)
    return pictures, said.stdout


class Media(unittest.TestCase):
    def expect_pillows(self, paths, **decoding):
        pictures, said = decode(paths, **decoding)
        for path, ours in zip(paths, pictures):
            with Image.open(path) as file:
                name, theirs = str(file), ImageOps.exif_transpose(file).convert("RGB")
            if decoding:
                theirs = theirs.resize((decoding["width"], decoding["height"]), Image.BICUBIC)
            theirs = numpy.asarray(theirs)
            with self.subTest(file=name):
                self.assertIsNotNone(ours, said)
                self.assertEqual(ours.shape, theirs.shape)
                self.assertEqual(int(numpy.abs(ours.astype(int) - theirs).max()), 0, "largest difference")

    def test_jpeg_of_all_samplings_colours_and_forms(self):
        rgb = Image.fromarray(picture(203, 117))
        paths = [file_of(rgb, "jpg", quality=quality, subsampling=sampling, progressive=progressive)
                 for quality in (30, 95) for sampling in ("4:4:4", "4:2:2", "4:2:0") for progressive in (False, True)]
        paths += [file_of(rgb.convert("L"), "jpg"), file_of(rgb.convert("CMYK"), "jpg", quality=90),
                  file_of(rgb, "jpg", quality=90, keep_rgb=True), file_of(rgb.resize((1, 1)), "jpg"),
                  file_of(rgb, "jpg", restart_marker_rows=1), file_of(rgb, "jpg", icc_profile=bytes(100000))]
        self.expect_pillows(paths)

    def test_png_of_all_modes(self):
        rgb = Image.fromarray(picture(61, 43))
        rgba = Image.fromarray(picture(61, 43, 4), "RGBA")
        grey = rgb.convert("L")
        paths = [file_of(image, "png") for image in (rgb, rgba, grey, rgba.convert("LA"), rgb.convert("1"),
                                                     rgb.quantize(200), rgb.quantize(2), rgb.quantize(4))]
        paths += [file_of(rgb.quantize(16), "png", bits=4), file_of(rgb.quantize(16), "png", transparency=3),
                  file_of(rgb, "png", transparency=(1, 2, 3)), file_of(grey, "png", transparency=7)]
        self.expect_pillows(paths)

    def test_webp(self):
        rgb, rgba = Image.fromarray(picture(203, 117)), Image.fromarray(picture(61, 43, 4), "RGBA")
        paths = [file_of(rgb, "webp", quality=quality) for quality in (10, 80, 100)]
        paths += [file_of(rgb, "webp", lossless=True), file_of(rgba, "webp", lossless=True, exact=True),
                  file_of(rgba, "webp", quality=80), file_of(rgb.resize((1, 1)), "webp")]
        self.expect_pillows(paths)
        animated = file_of(rgb, "webp", save_all=True, append_images=[rgb.rotate(90)])
        pictures, said = decode([animated])
        self.assertIsNone(pictures[0])
        self.assertIn("an animated WebP", said)

    def test_gif(self):
        rgb = Image.fromarray(picture(61, 43))
        paths = [file_of(rgb.quantize(colors), "gif", interlace=interlace)
                 for colors in (2, 4, 100, 256) for interlace in (0, 1)]
        paths += [file_of(Image.fromarray(picture(600, 400)).quantize(256), "gif"), file_of(rgb.convert("L"), "gif")]
        self.expect_pillows(paths)

    def test_animated_gif(self):
        for disposal in (0, 1, 2):
            for transparent in (False, True):
                frames = []
                for number in range(6):
                    frame = Image.new("RGBA", (40, 30), (0, 0, 0, 0) if transparent else (10, 20, 30, 255))
                    frame.paste((40 * number, 200, 255 - 40 * number, 255), (3 * number, number, 3 * number + 12, number + 9))
                    frames.append(frame)
                delays = [100, 250, 40, 1000, 300, 20]
                path = file_of(frames[0], "gif", save_all=True, append_images=frames[1:], duration=delays, disposal=disposal)
                theirs, times, begin = [], [], 0.0
                with Image.open(path) as file:
                    for number in range(file.n_frames):
                        file.seek(number)
                        white = Image.new("RGBA", file.size, "white")
                        theirs.append(numpy.asarray(Image.alpha_composite(white, file.convert("RGBA")).convert("RGB")))
                        times.append(begin + file.info["duration"] / 2000)
                        begin += file.info["duration"] / 1000
                out = folder / "frames.bin"
                said = subprocess.run([probe, "animate", out, "40", "30", path, *map(str, times)], check=True,
                                      capture_output=True, text=True)
                self.assertAlmostEqual(float(said.stdout), begin, places=3)
                ours = numpy.frombuffer(out.read_bytes(), numpy.uint8).reshape(-1, 30, 40, 3)
                with self.subTest(disposal=disposal, transparent=transparent):
                    self.assertEqual(numpy.abs(ours.astype(int) - numpy.stack(theirs)).max(axis=(1, 2, 3)).tolist(), [0] * len(theirs))

    def test_orientation_in_jpeg_png_and_webp(self):
        rgb, paths = Image.fromarray(picture(37, 20)), []
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0110], exif[0x0112] = "a camera", orientation
            paths += [file_of(rgb, "webp", exif=exif, lossless=True), file_of(rgb, "jpg", exif=exif),
                      file_of(rgb, "png", exif=exif)]
            png = paths[-1].read_bytes()  # and where some programs write it, behind the pixels
            begin, behind = png.index(b"eXIf") - 4, png.index(b"IEND") - 4
            end = begin + 12 + int.from_bytes(png[begin : begin + 4])
            late = folder / f"late-{orientation}.png"
            late.write_bytes(png[:begin] + png[end:behind] + png[begin:end] + png[behind:])
            paths.append(late)
        self.expect_pillows(paths)
        self.expect_pillows(paths, width=16, height=24)

    def test_resize(self):
        whole = picture(640, 480)
        for width, height in ((640, 480), (500, 375), (224, 300), (300, 224), (224, 224), (225, 223), (97, 31), (7, 5),
                              (3, 640), (1, 1)):
            path = file_of(Image.fromarray(whole[:height, :width] if height <= 480 else whole.transpose(1, 0, 2)), "png")
            for to in ((224, 224), (13, 57), (1, 1)):
                self.expect_pillows([path], width=to[0], height=to[1])
        noise = draw.integers(0, 2, (200, 331, 3)).astype(numpy.uint8) * 255  # every sum is clipped somewhere
        self.expect_pillows([file_of(Image.fromarray(noise), "png")], width=224, height=224)

    def test_scaled_decoding_stays_near_the_full_one(self):
        path = file_of(Image.fromarray(picture(640, 480)), "jpg", quality=92)
        with Image.open(path) as file:
            theirs = numpy.asarray(file.resize((224, 224), Image.BICUBIC)).astype(int)
        ours = decode([path], width=224, height=224, scaled=1)[0][0]
        difference = numpy.abs(ours - theirs)
        self.assertLess(difference.mean(), 2.0)
        self.assertGreater(difference.max(), 0, "the picture was not decoded at half its size")

    def test_truncated_files_are_refused(self):
        rgb, paths = Image.fromarray(picture(160, 120)), []
        for whole in (file_of(rgb, "jpg"), file_of(rgb, "jpg", progressive=True), file_of(rgb, "png"),
                      file_of(rgb, "webp"), file_of(rgb, "webp", lossless=True), file_of(rgb.quantize(), "gif")):
            data = whole.read_bytes()
            for length in (0, 5, 30, len(data) // 2, len(data) * 9 // 10, len(data) - 40):
                paths.append(folder / f"cut{len(paths)}{whole.suffix}")
                paths[-1].write_bytes(data[:length])
        pictures, said = decode(paths)
        self.assertEqual([path.name for path, one in zip(paths, pictures) if one is not None], [], said)


if __name__ == "__main__":
    unittest.main()
