// The config of an image processor of transformers, as its families read it.
#pragma once
#include "base/config_reader.h"
#include "data/media/image_processor.h"

#include <nlohmann/json.hpp>

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

namespace fvlm {

namespace image_processors {

using Json = nlohmann::json;
using Resize = ImageProcessor::Resize;

inline constexpr int64_t max_edge = 1 << 14, most_patches = 64; // of a cell along each side
inline constexpr std::array<double, 3> clip_mean{0.48145466, 0.4578275, 0.40821073},
    clip_deviation{0.26862954, 0.26130258, 0.27577711}, half{0.5, 0.5, 0.5}, zero{0, 0, 0}, one{1, 1, 1};

} // namespace image_processors

// A class of image processors, with what holds where a config leaves an option out: CLIP's, unless it says otherwise.
struct ProcessorClass {
  const char* type;
  ImageProcessor::Resize resize = ImageProcessor::Resize::shortest_edge;
  int64_t edge = 224;
  ResizeFilter filter = ResizeFilter::bicubic;
  bool center_crop = false; // to `edge`
  bool may_pad_to_square = false;
  const std::array<double, 3>&mean = image_processors::clip_mean, &deviation = image_processors::clip_deviation;
  bool normalizes = true;     // with these
  bool to_both_signs = false; // what is then made of the values, from 0 to 1, is from -1 to 1
  // Of cells: what they are made of, and their limits.
  int64_t patch = 14, min_pixels = 56 * 56, max_pixels = 28 * 28 * 1280;
  bool is_of_videos = false;
};

// What is wrong is noted in `config`, and something harmless returned.
struct ProcessorReader {
  ProcessorReader(const nlohmann::json& content, const std::string& where);

  const nlohmann::json json; // the config, without what is null: transformers reads that as if it were left out
  ConfigReader config;       // of the same
  const ProcessorClass* family = nullptr;
  ImageProcessor out;

  void refuse(const char* key, const std::string& expected) { config.refuse_unless(false, key, expected); }
  static bool length(const nlohmann::json& value, int64_t& out);
  // Of an object that has exactly these keys.
  static bool sizes(const nlohmann::json& object, std::initializer_list<std::pair<const char*, int64_t*>> keys);
  // [height, width] or an object of both.
  static bool exact_size(const nlohmann::json& value, ImageSize& out);

  void read_filter();
  void read_resize(); // of the whole image
  void read_values(); // how they are rescaled and normalized
  // Of an image that is a frame of its own.
  void read_crop();
  void read_into_square();
  ImageSize crop_size();
  std::array<uint8_t, 3> mean_color();
  // Both sides of an image become multiples of cells, and nothing is cut off.
  void require_whole_cells();

 private:
  void read_size(const nlohmann::json& size, bool to_square);
  // A number for all channels, or one for each.
  std::array<double, 3> channels(const char* key, std::array<double, 3> out, double min, double max);
};

} // namespace fvlm
