#include "data/preprocess_manifest.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "data/boxes.h"
#include "data/own_template.h"
#include "data/samples/content_hash.h"

#include <fmt/format.h>

#include <map>

namespace fvlm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int version = 2; // of the folder's layout and of what stands in its shards
constexpr const char* program = "fvlm-engine preprocess";
constexpr const char* manifest_name = "manifest.json";
constexpr uint64_t max_manifest_bytes = uint64_t{1} << 30;
constexpr size_t max_differences = 5;
constexpr const char* template_key = "chat_template_hash";

Json read_manifest(const fs::path& folder) {
  if (!fs::exists(folder / manifest_name))
    throw Error(ErrorKind::data, "there is no manifest.json of fvlm-engine preprocess")
        .at(folder.string())
        .advise("make the folder with fvlm-engine preprocess, or take `preprocessed` out of the recipe");
  Json manifest = read_json_object(folder / manifest_name, max_manifest_bytes);
  auto made = manifest.find("program");
  if (made == manifest.end() || *made != program || !manifest.contains("made_from") || !manifest.contains("sources"))
    throw Error(ErrorKind::data, "it was not written by fvlm-engine preprocess")
        .at((folder / manifest_name).string())
        .advise("name another folder in `preprocessed`");
  return manifest;
}

std::string brief(const Json& value) {
  std::string text = value.is_null() ? "nothing" : value.dump();
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

// Of two objects, key by key; what to describe of a value that is not the same.
template <class Describe>
void compare(const Json& then, const Json& now, std::vector<std::string>& differences, Describe describe) {
  std::map<std::string, std::pair<Json, Json>> all;
  for (const auto& [key, value] : then.items()) all[key].first = value;
  for (const auto& [key, value] : now.items()) all[key].second = value;
  for (const auto& [key, values] : all)
    if (values.first != values.second) differences.push_back(describe(key, values.first, values.second));
}

std::string describe_setting(const std::string& key, const Json& then, const Json& now) {
  if (key == "tokenizer") return "the tokenizer is another one";
  if (key == template_key) return "the chat template, or a special token that it writes, is another one";
  return fmt::format("{} was {} and is {}", key, brief(then), brief(now));
}

void compare_sources(const Json& then, const Json& now, std::vector<std::string>& differences) {
  if (then.size() != now.size())
    return differences.push_back(fmt::format("there were {} sources and are {}", then.size(), now.size()));
  for (size_t i = 0; i < now.size(); ++i) {
    if (!then[i].contains("content"))
      differences.push_back(
          fmt::format("an earlier version made it, which noted times of source {}, and no content", i));
    else if (then[i]["content"] != now[i]["content"])
      differences.push_back(fmt::format("of source {}, the data have changed", i));
    Json before_settings = then[i].at("settings");
    before_settings.erase("root"); // of earlier versions; what is there belongs to the content
    compare(before_settings, now[i].at("settings"), differences, [&](auto& key, auto& before, auto& after) {
      return fmt::format("of source {}, {}", i, describe_setting(key, before, after));
    });
  }
}

void check_own_shards(const fs::path& folder, const Json& sources, std::vector<std::string>& differences) {
  for (const auto& source : sources)
    for (const auto& shard : source) {
      std::error_code missing;
      auto file = shard.at("file").get<std::string>();
      auto bytes = fs::file_size(folder / file, missing);
      if (missing)
        differences.push_back(fmt::format("its own shard {} is gone", file));
      else if (bytes != shard.at("bytes").get<uint64_t>())
        differences.push_back(
            fmt::format("its own shard {} has {} bytes and had {}", file, bytes, shard.at("bytes").get<uint64_t>()));
    }
}

// What changes pixels. Mean and std are applied when they are read.
Json description(const ImageProcessor& processor) {
  Json out = {{"resize", static_cast<int>(processor.resize)},
              {"size", {processor.size.height, processor.size.width}},
              {"edge", processor.edge},
              {"filter", static_cast<int>(processor.filter)}};
  if (processor.min_edge > 0) out["min_edge"] = processor.min_edge;
  if (processor.square_padding) out["square_padding"] = *processor.square_padding;
  if (processor.center_crop) out["center_crop"] = {processor.center_crop->height, processor.center_crop->width};
  if (processor.tile) out["tile"] = *processor.tile;
  if (processor.splits_into_tiles) out["splits_into_tiles"] = true;
  if (processor.tile_form == TileForm::internvl || processor.tile_form == TileForm::granite_docling)
    out["tiles"] = {processor.min_tiles, processor.max_tiles};
  if (const auto& spread = processor.spread)
    out["spread"] = {spread->max_tiles, spread->max_scale, spread->min_aspect, spread->max_aspect};
  if (processor.tile_form == TileForm::ovis2)
    out["tiles"] = {processor.min_tiles, processor.max_tiles, processor.tiles_cover};
  if (processor.has_cells()) out["pixels"] = {processor.min_pixels, processor.max_pixels};
  if (processor.split_pixels > 0)
    out["cell_tiles"] = {processor.min_tiles, processor.max_tiles, processor.tile_cells, processor.split_pixels,
                         processor.adds_whole};
  if (processor.tile_form == TileForm::minicpm) out["tiles"] = {processor.max_tiles, processor.numbers_images};
  if (processor.keeps_small) out["keeps_small"] = true;
  if (processor.has_video_text()) {
    const VideoProcessor::Sampling& sampling = *processor.video->sampling;
    out["video_sampling"] = {sampling.per_second, sampling.max_frames, sampling.edge};
  } else if (const auto& video = processor.video)
    out["video"] = {video->min_pixels, video->max_pixels, video->counts_all_frames, video->max_tokens.value_or(0),
                    processor.step_frames};
  if (processor.padding_of_several) out["padding_of_several"] = *processor.padding_of_several;
  for (const ImageSize& grid : processor.grids) out["grids"].push_back({grid.height, grid.width});
  return out;
}

} // namespace

std::optional<ImageProcessor> image_processor(const plan::Model& model) {
  const auto* folder = std::get_if<std::string>(&model.vision);
  return folder ? find_image_processor(*folder, model) : std::nullopt;
}

FramePreparation frame_preparation(const plan::Model& model) {
  return {model.image_size, image_processor(model)};
}

PreprocessInput preprocess_input(const plan::Plan& plan, const plan::Mix& mix, const plan::VisualRows& visual_rows) {
  return {mix, fs::path(plan.model.tokenizer_folder()) / "tokenizer.json", plan.model.image_size, visual_rows,
          image_processor(plan.model)};
}

Json made_from(const PreprocessInput& input) {
  const plan::Mix& mix = input.mix;
  Json sources = Json::array();
  for (const auto& source : mix.sources) {
    sources.push_back(
        {{"settings", {{"name", source.name}, {"text only", source.text_only()}, {"fields", source.fields}}},
         {"content", content_hash(ShardSet(source.patterns(), with_root({}, source)), source)}});
  }
  Json settings = {{"version", version},
                   {"image_size", input.image_size},
                   {"tokenizer", sha256_file(input.tokenizer)},
                   {"max_frames", mix.max_frames},
                   {"replicate_image_frames", mix.replicate_image_frames},
                   {"system", mix.system},
                   {"prompts", mix.prompts}};
  if (input.visual_rows.in_place) settings["placeholders per frame"] = input.visual_rows.per_frame;
  if (input.processor) settings["image processor"] = description(*input.processor);
  if (mix.chat_template) {
    settings["chat_template"] = *mix.chat_template;
    settings[template_key] = chat_template_hash(input.tokenizer.parent_path(), *mix.chat_template);
  }
  if (mix.mask_history) settings["mask_history"] = true;
  if (const auto form = mix.boxes ? mix.boxes : box_form_of(input.tokenizer.parent_path()))
    settings["boxes"] = plan::name_of(*form);
  if (mix.documents) settings["documents"] = true;
  if (const auto form = mix.questions.value_or(plan::QuestionForm()); form != plan::QuestionForm())
    settings["questions"] = {form.source,
                             form.prompt,
                             form.anchor,
                             form.eos,
                             form.bos,
                             form.bos_place == plan::QuestionForm::Begin::first,
                             form.max_answer_tokens,
                             form.max_source_tokens.value_or(0)};
  return {{"settings", settings}, {"sources", sources}};
}

void write_manifest(const fs::path& folder, const Json& made_from, const PreprocessManifest& manifest) {
  Json sources = Json::array();
  for (const auto& shards : manifest.sources) {
    sources.push_back(Json::array());
    for (const auto& shard : shards)
      sources.back().push_back({{"file", shard.file}, {"bytes", shard.bytes}, {"samples", shard.samples}});
  }
  Json all{{"program", program}, {"made_from", made_from}, {"sources", sources}, {"broken", manifest.broken}};
  write_file_atomic(folder / manifest_name, all.dump(1) + "\n");
}

bool has_manifest(const fs::path& folder) {
  if (!fs::exists(folder / manifest_name)) return false;
  const Json manifest = read_json_object(folder / manifest_name, max_manifest_bytes);
  return manifest.value("program", "") == program;
}

void remove_manifest(const fs::path& folder) {
  fs::remove(folder / manifest_name);
}

std::optional<std::string> stale_reason(const fs::path& folder, const PreprocessInput& input) {
  Json manifest = read_manifest(folder), now = made_from(input);
  std::vector<std::string> differences;
  try {
    Json& then = manifest["made_from"];
    Json &settings_then = then.at("settings"), &settings_now = now["settings"];
    // Folders that were made before have no such key, and another name of the template is described by itself.
    if (!settings_then.contains(template_key) || !settings_now.contains(template_key)) {
      settings_then.erase(template_key);
      settings_now.erase(template_key);
    }
    compare(settings_then, settings_now, differences, describe_setting);
    compare_sources(then.at("sources"), now["sources"], differences);
    check_own_shards(folder, manifest["sources"], differences);
  } catch (const Json::exception&) {
    return "its manifest is damaged";
  }
  if (differences.empty()) return std::nullopt;
  size_t more = differences.size() > max_differences ? differences.size() - max_differences : 0;
  differences.resize(differences.size() - more);
  return join(differences, "; ") + (more ? fmt::format("; and {} more", more) : "");
}

plan::Mix preprocessed_mix(const fs::path& folder, const plan::Mix& mix) {
  plan::Mix reads = mix;
  for (size_t i = 0; i < reads.sources.size(); ++i) {
    plan::Source& source = reads.sources[i];
    source.patterns() = {(folder / fmt::format("{}", i) / "*.tar").string()};
    source.fields.clear();
  }
  return reads;
}

plan::Mix resolve_preprocessed_mix(const plan::Plan& plan, const plan::Mix& mix, const plan::VisualRows& visual_rows) {
  if (!mix.preprocessed) return mix;
  if (const auto reason = stale_reason(*mix.preprocessed, preprocess_input(plan, mix, visual_rows))) {
    log_warning("{}: the shards themselves are read, since this does not fit them: {}", *mix.preprocessed, *reason);
    return mix;
  }
  return preprocessed_mix(*mix.preprocessed, mix);
}

} // namespace fvlm
