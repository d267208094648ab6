#include "data/media/tile_forms/internvl.h"

#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass internvl_classes[]{{.type = "GotOcr2ImageProcessor", .resize = Resize::exact, .edge = 384}};
constexpr const char* internvl_options[]{"crop_to_patches", "min_patches", "max_patches"};

// transformers' processors of these models cut images whatever the image processor's own setting is.
void read_internvl(ProcessorReader& in) {
  read_square_tiles(in);
  const std::string processor = in.config.text("processor_class", "");
  if (processor == "InternVLProcessor" || processor == "QianfanOCRProcessor")
    in.out.splits_into_tiles = in.out.max_tiles > 1;
}

void cut_internvl(const ImageProcessor& processor, ImageSize, CutSizes& sizes) {
  sizes.tiled = sizes::by_aspect_ratio(sizes.resized, *processor.tile, processor.min_tiles, processor.max_tiles);
}

} // namespace

void read_square_tiles(ProcessorReader& in, int64_t max_tiles, bool splits) {
  in.read_resize();
  constexpr int64_t most_patches = 256;
  in.out.min_tiles = in.config.whole("min_patches", 1, 1, most_patches);
  in.out.max_tiles = in.config.whole("max_patches", max_tiles, 1, most_patches);
  const bool resizes = in.config.flag("do_resize", true);
  in.config.refuse_unless(resizes, "do_resize", "frames have one size");
  if (resizes && (in.out.resize != Resize::exact || in.out.size.height != in.out.size.width))
    in.refuse("size", "expected equal 'height' and 'width': frames are squares");
  for (const char* key : {"do_center_crop", "do_pad"})
    in.config.refuse_unless(!in.config.flag(key, false), key, "this processor does neither crop nor pad");
  in.out.tile = in.out.size.height;
  in.out.size = {};
  in.out.resize = Resize::none;
  in.out.splits_into_tiles = in.config.flag("crop_to_patches", splits) && in.out.max_tiles > 1;
}

const TileFormRules internvl_rules{
    .classes = internvl_classes, .options = internvl_options, .read = read_internvl, .cut = cut_internvl};

} // namespace fvlm
