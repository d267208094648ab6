#include "data/media/override_processor.h"

#include "base/error.h"
#include "base/text.h"
#include "data/media/image_processor_config.h"
#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <map>

namespace fvlm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Throws where the processor does not have the limit.
void require_limit(const ImageProcessor& processor, const ProcessorLimit& limit, const fs::path& folder) {
  const bool is_cut = processor.tile && processor.splits_into_tiles;
  const std::string of = is_cut ? fmt::format("the image processor of {}", traits_of(processor.tile_form).model)
                                : "this image processor, whose frames have one size,";
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::data, "{} cannot be set: {}", limit.key, why)
        .at(folder.string())
        .advise("leave {} out", limit.key);
  };
  if (!is_cut || !rules_of(processor.tile_form).has_pixel_limits) refuse(of + " has no such limit");
  if (!limit.is_of_videos || processor.video) return;
  refuse(rules_of(processor.tile_form).has_videos ? "the folder does not say how videos are prepared"
                                                  : of + " reads no videos");
}

// Of images or of videos: what the keys say replaces the folder's range.
void override_range(const ProcessorLimit& min, const ProcessorLimit& max, const ProcessorOverrides& overrides,
                    const ImageProcessor& processor, int64_t& least, int64_t& most, const fs::path& folder) {
  const auto given_min = overrides.*min.value, given_max = overrides.*max.value;
  if (given_min) require_limit(processor, min, folder);
  if (given_max) require_limit(processor, max, folder);
  if (!given_min && !given_max) return;
  least = given_min.value_or(least), most = given_max.value_or(most);
  const int64_t side = *processor.tile;
  if (most < side * side)
    throw Error(ErrorKind::data, "{} = {} is less than one cell of {} x {} pixels", max.key, most, side, side)
        .at(folder.string())
        .advise("an image has one cell at least: set {} to {} or more", max.key, side * side);
  if (least > most)
    throw Error(ErrorKind::data, "{} = {} is more than {} = {}", min.key, least, max.key, most)
        .at(folder.string())
        .advise("a limit that is not given is that of the folder: set both {} and {}", min.key, max.key);
}

// transformers reads `size`; some of its classes, and earlier versions of it, the others, which go first.
void write_range(Json& config, int64_t least, int64_t most) {
  config["size"] = {{"shortest_edge", least}, {"longest_edge", most}};
  for (const auto& [key, value] : {std::pair{"min_pixels", least}, std::pair{"max_pixels", most}})
    if (config.contains(key)) config[key] = value;
}

// The config of videos in a file of its own, where that of images was for both.
Json config_of_videos(Json config) {
  std::string type = config.at("image_processor_type");
  if (const size_t at = type.find("Image"); at != std::string::npos) type.replace(at, 5, "Video");
  if (type.ends_with("Fast")) type.resize(type.size() - 4);
  config.erase("image_processor_type");
  config["video_processor_type"] = type;
  return config;
}

} // namespace

void override_processor(ImageProcessor& processor, const ProcessorOverrides& overrides, const fs::path& folder) {
  const auto& [min, max, video_min, video_max] = processor_limits;
  override_range(min, max, overrides, processor, processor.min_pixels, processor.max_pixels, folder);
  VideoProcessor none, &video = processor.video ? *processor.video : none;
  override_range(video_min, video_max, overrides, processor, video.min_pixels, video.max_pixels, folder);
}

std::vector<ProcessorFile> overridden_files(const fs::path& folder, const ProcessorOverrides& overrides) {
  if (overrides == ProcessorOverrides()) return {};
  const ImageProcessor processor = *find_image_processor(folder, overrides);
  const ProcessorConfig images = *find_image_config(folder);
  const auto videos = find_video_config(folder, processor);
  std::map<std::string, Json> files;
  const auto edited = [&](const ProcessorConfig& config) -> Json& {
    const auto [file, is_new] = files.try_emplace(config.file.filename().string());
    if (is_new) file->second = config.whole;
    return config.section ? file->second.at(config.section) : file->second;
  };
  if (overrides.min_pixels || overrides.max_pixels)
    write_range(edited(images), processor.min_pixels, processor.max_pixels);
  const bool shares_file = videos && videos->file == images.file && !videos->section;
  if (shares_file || overrides.video_min_pixels || overrides.video_max_pixels) {
    Json& config = shares_file ? files[video_config_file] = config_of_videos(videos->whole) : edited(*videos);
    write_range(config, processor.video->min_pixels, processor.video->max_pixels);
  }
  std::vector<ProcessorFile> out;
  for (const auto& [name, content] : files) out.push_back({name, content.dump(2) + "\n"});
  return out;
}

} // namespace fvlm
