#include "data/media/image_processor_reader.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

using image_processors::max_edge;
using Resize = ImageProcessor::Resize;

nlohmann::json without_nulls(const nlohmann::json& object) {
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) out[key] = value;
  return out;
}

} // namespace

ProcessorReader::ProcessorReader(const nlohmann::json& content, const std::string& where)
    : json(without_nulls(content)), config(json, where) {}

bool ProcessorReader::sizes(const nlohmann::json& object,
                            std::initializer_list<std::pair<const char*, int64_t*>> keys) {
  const nlohmann::json present = without_nulls(object);
  if (present.size() != keys.size()) return false;
  for (const auto& [key, out] : keys) {
    const auto found = present.find(key);
    if (found == present.end() || !length(*found, *out)) return false;
  }
  return true;
}

bool ProcessorReader::length(const nlohmann::json& value, int64_t& out) {
  if (!value.is_number_integer() || value < 1 || value > max_edge) return false;
  out = value.get<int64_t>();
  return true;
}

bool ProcessorReader::exact_size(const nlohmann::json& value, ImageSize& out) {
  if (value.is_array()) return value.size() == 2 && length(value[0], out.height) && length(value[1], out.width);
  return value.is_object() && sizes(value, {{"height", &out.height}, {"width", &out.width}});
}

void ProcessorReader::read_filter() {
  constexpr ResizeFilter filters[]{ResizeFilter::lanczos, ResizeFilter::bilinear, ResizeFilter::bicubic};
  const int64_t resample = config.has("resample") ? config.whole("resample", std::nullopt, 0, 5) : -1;
  config.refuse_unless(resample == -1 || (resample >= 1 && resample <= 3), "resample",
                       "1 (Lanczos), 2 (bilinear) and 3 (bicubic) are supported");
  out.filter = resample >= 1 && resample <= 3 ? filters[resample - 1] : family->filter;
}

void ProcessorReader::read_resize() {
  const bool to_square = config.flag("default_to_square", false);
  if (!config.flag("do_resize", true)) return;
  out.resize = family->resize;
  out.edge = family->edge;
  out.size = {family->edge, family->edge};
  if (config.has("size")) read_size(json["size"], to_square);
  if (out.resize != Resize::exact) out.size = {};
  if (out.resize == Resize::exact) out.edge = 0;
}

void ProcessorReader::read_size(const nlohmann::json& size, bool to_square) {
  const bool is_longest = family->resize == Resize::longest_edge;
  int64_t edge = 0;
  ImageSize exact;
  if (exact_size(size, exact)) {
    out.resize = Resize::exact;
    out.size = exact;
  } else if (length(size, edge)) {
    out.resize = to_square ? Resize::exact : Resize::shortest_edge;
    out.edge = edge;
    out.size = {edge, edge};
  } else if (!is_longest && size.is_object() && sizes(size, {{"shortest_edge", &edge}})) {
    out.resize = Resize::shortest_edge;
    out.edge = edge;
  } else if (is_longest && size.is_object() && sizes(size, {{"longest_edge", &edge}})) {
    out.resize = Resize::longest_edge;
    out.edge = edge;
  } else {
    refuse("size", fmt::format("expected 'height' and 'width', or '{}' alone, of 1 to {} pixels",
                               is_longest ? "longest_edge" : "shortest_edge", max_edge));
  }
  if (is_longest && out.resize == Resize::shortest_edge) refuse("size", "expected an object with 'longest_edge'");
}

std::array<uint8_t, 3> ProcessorReader::mean_color() {
  std::array<uint8_t, 3> color{};
  const std::array<double, 3> mean = channels("image_mean", family->mean, 0, 1);
  for (size_t i = 0; i < 3; ++i) color[i] = static_cast<uint8_t>(mean[i] * 255);
  return color;
}

ImageSize ProcessorReader::crop_size() {
  ImageSize crop{family->edge, family->edge};
  int64_t edge = 0;
  if (config.has("crop_size")) {
    if (length(json["crop_size"], edge))
      crop = {edge, edge};
    else if (!exact_size(json["crop_size"], crop))
      refuse("crop_size", fmt::format("expected 'height' and 'width' of 1 to {} pixels", max_edge));
  } else if (!family->center_crop) {
    refuse("do_center_crop", "'crop_size' is missing");
  }
  return crop;
}

void ProcessorReader::require_whole_cells() {
  config.refuse_unless(config.flag("do_resize", true), "do_resize", "both sides are multiples of a cell");
  config.refuse_unless(!config.flag("do_center_crop", false), "do_center_crop", "this processor does not crop");
}

std::array<double, 3> ProcessorReader::channels(const char* key, std::array<double, 3> out, double min, double max) {
  if (!config.has(key)) return out;
  const nlohmann::json& value = json[key];
  bool good = value.is_number() || (value.is_array() && value.size() == 3);
  for (size_t i = 0; good && i < 3; ++i) {
    const nlohmann::json& one = value.is_array() ? value[i] : value;
    good = one.is_number() && one >= min && one <= max;
    if (good) out[i] = one.get<double>();
  }
  if (!good) refuse(key, fmt::format("expected one number, or three, from {:g} to {:g}", min, max));
  return out;
}

void ProcessorReader::read_values() {
  const double factor = config.number("rescale_factor", 1.0 / 255, 1e-6, 1e6);
  if (config.flag("do_rescale", true)) out.rescale_factor = factor;
  const std::array<double, 3> mean = channels("image_mean", family->mean, -1e4, 1e4),
                              deviation = channels("image_std", family->deviation, 1e-6, 1e4);
  const bool normalizes = config.flag("do_normalize", family->normalizes);
  for (size_t i = 0; i < 3; ++i) {
    if (normalizes) {
      out.mean[i] = static_cast<float>(mean[i]);
      out.deviation[i] = static_cast<float>(deviation[i]);
    }
    if (family->to_both_signs) {
      out.deviation[i] /= 2;
      out.mean[i] += out.deviation[i];
    }
  }
}

void ProcessorReader::read_crop() {
  const bool pad = config.flag("do_pad", false);
  config.refuse_unless(!pad || family->may_pad_to_square, "do_pad", "only LlavaImageProcessor pads images");
  if (pad && family->may_pad_to_square) out.square_padding = mean_color();
  if (config.flag("do_center_crop", family->center_crop)) out.center_crop = crop_size();
}

void ProcessorReader::read_into_square() {
  config.refuse_unless(config.flag("do_resize", true), "do_resize", "frames are squares of one size");
  config.refuse_unless(config.flag("do_pad", true), "do_pad", "frames are squares of one size");
  config.refuse_unless(!config.flag("do_center_crop", false), "do_center_crop", "this processor does not crop");
  ImageSize square{family->edge, family->edge};
  if (config.has("size") && (!exact_size(json["size"], square) || square.height != square.width))
    refuse("size", fmt::format("expected 'height' and 'width', both the same, of 1 to {} pixels", max_edge));
  out.resize = Resize::into_square;
  out.edge = square.height;
  out.min_edge = config.whole("min_size", 14, 1, max_edge);
  config.refuse_unless(out.min_edge <= out.edge, "min_size", fmt::format("at most the {} of 'size' is", out.edge));
  out.square_padding = mean_color(); // whatever 'background_color' says, as in transformers
}

} // namespace fvlm
