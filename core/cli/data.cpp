// fvlm-engine data: statistics and samples of a stage's data, as the model will see it.
#include "base/error.h"
#include "base/file.h"
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"
#include "budget/frame_rows.h"
#include "cli/data_check.h"
#include "cli/data_convert.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "data/media/draw.h"
#include "data/media/frame_preparation.h"
#include "data/media/write_image.h"
#include "data/preprocess.h"
#include "data/stream/prefetcher.h"
#include "data/visual_marks.h"
#include "objective/labels.h"
#include "train/data_rehearsal.h"
#include "train/stage_length.h"
#include "train/stage_padding.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace fvlm::cli {
namespace {

int data_stats(Arguments arguments);
int data_show(Arguments arguments);

constexpr Verb verbs[] = {
    {"check", "decode every sample once and list the broken ones", data_check},
    {"convert", "write samples of any form to tar shards", data_convert},
    {"stats", "print lengths, sources and how full the packs get", data_stats},
    {"show", "show one sample as the model sees it", data_show},
};

// A stage of a recipe with its open data and plugins.
struct OpenStage {
  explicit OpenStage(const ParsedOptions& parsed)
      : resolved(recipe::resolve(recipe_request(parsed))), registry(open_registry(parsed)),
        stage(train::with_length(resolved.plan, parsed.value("stage")
                                                    ? stage_named(resolved.plan, *parsed.value("stage"))
                                                    : resolved.plan.stages.front())),
        progress("opening") {
    feed::MixDataOptions options;
    options.progress = [&](const auto&... step) { progress.steps(step...); };
    data.emplace(resolved.plan, stage, *registry, options);
    progress.finish();
  }

  recipe::Resolved resolved;
  std::unique_ptr<Registry> registry;
  plan::Stage stage;
  Progress progress;
  std::optional<train::StageData> data;
};

Options& with_stage_options(Options& options) {
  add_recipe_options(options);
  with_plugin_options(options);
  return options.value("stage", "NAME", "the stage; default: the first of the recipe")
      .flag("json", "print one JSON document on standard output");
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

Json spread_json(const Distribution& spread) {
  Json bars = Json::array();
  for (const auto& bar : spread.histogram(20))
    bars.push_back({{"from", bar.from}, {"to", bar.to}, {"count", bar.count}});
  return {{"mean", spread.mean()},
          {"least", spread.min()},
          {"median", spread.quantile(0.5)},
          {"p90", spread.quantile(0.9)},
          {"p99", spread.quantile(0.99)},
          {"most", spread.max()},
          {"histogram", bars}};
}

Json source_json(const SourceStatistics& source) {
  return {{"samples", source.frames.count()},
          {"frames", spread_json(source.frames)},
          {"tokens", spread_json(source.tokens)},
          {"answer_tokens", spread_json(source.answer_tokens)},
          {"cut_samples", source.cut},
          {"cut_tokens", source.truncated_tokens},
          {"cut_answer_tokens", source.cut_answer}};
}

// A packing to advise, and the lengths of the mix under which a recipe accepts it: a pack has to hold the largest
// sample that they allow.
struct Advice {
  PackSize packing;
  std::vector<std::pair<std::string, int64_t>> lengths; // to lower
};

Advice advice_of(const OpenStage& opened, const DataStatistics& found) {
  Advice advice{found.suggestion(), {}};
  const plan::Stage& stage = opened.stage;
  const int64_t rows_per_frame = budget::most_rows_per_frame(opened.resolved.plan.model);
  const auto largest = stage.largest_sample(rows_per_frame);
  if (advice.packing.frames >= largest.frames && advice.packing.rows >= largest.tokens) return advice;
  plan::Stage lower = stage;
  const auto limit = [&](const char* name, int64_t& length, int64_t seen) {
    if (length > seen) advice.lengths.emplace_back(name, length = seen);
  };
  const int64_t frames = std::max<int64_t>(1, found.all.frames.max());
  if (stage.data.has_frames()) {
    limit("max_frames", lower.data.max_frames, frames);
    limit("replicate_image_frames", lower.data.replicate_image_frames, frames);
  }
  limit("max_text_tokens", lower.data.max_text_tokens, std::max<int64_t>(2, found.longest_text));
  const auto needed = lower.largest_sample(rows_per_frame);
  advice.packing = {std::max(advice.packing.frames, needed.frames), std::max(advice.packing.rows, needed.tokens)};
  return advice;
}

void print_json(const OpenStage& opened, const DataStatistics& found) {
  Json sources = Json::object();
  for (const auto& [name, source] : found.sources) sources[name] = source_json(source);
  const Advice advice = advice_of(opened, found);
  Json suggestion = {{"frames", advice.packing.frames}, {"tokens", advice.packing.rows}};
  for (const auto& [name, length] : advice.lengths) suggestion["data"][name] = length;
  fmt::print("{}", dump(Json{{"stage", opened.stage.name},
                             {"in_shards", opened.data->samples().sizes()},
                             {"all", source_json(found.all)},
                             {"sources", sources},
                             {"broken", found.broken},
                             {"left_out", found.left_out},
                             {"reasons", found.reasons},
                             {"packing",
                              {{"steps", found.steps},
                               {"packs", found.packs},
                               {"samples_a_pack", found.samples_a_pack.mean()},
                               {"capacity", {{"frames", found.capacity.frames}, {"tokens", found.capacity.rows}}},
                               {"fill", {{"frames", found.fill_of_frames()}, {"tokens", found.fill_of_rows()}}},
                               {"padding_waste_of_batches", found.padding_waste()},
                               {"padding_waste_of_packs", found.packing_waste()},
                               {"suggestion", suggestion}}}}));
}

void print_sources(const DataStatistics& found) {
  TextTable table({"source", "samples", "share", "frames mean", "most", "tokens mean", "median", "p90", "most",
                   "answer mean", "cut", "answer tokens cut"});
  const auto line = [&](const std::string& name, const SourceStatistics& source) {
    const auto count = static_cast<int64_t>(source.frames.count());
    table.row({name.empty() ? "(no name)" : strip_control_characters(name), grouped(count),
               percent(static_cast<double>(count) / static_cast<double>(found.all.frames.count())),
               fmt::format("{:.1f}", source.frames.mean()), grouped(source.frames.max()),
               fmt::format("{:.1f}", source.tokens.mean()), grouped(source.tokens.quantile(0.5)),
               grouped(source.tokens.quantile(0.9)), grouped(source.tokens.max()),
               fmt::format("{:.1f}", source.answer_tokens.mean()), grouped(source.cut), grouped(source.cut_answer)});
  };
  for (const auto& [name, source] : found.sources) line(name, source);
  if (found.sources.size() > 1) line("all", found.all);
  fmt::print("{}", table.text());
}

void print_histogram(const char* title, const Distribution& spread) {
  constexpr size_t bars = 12, columns = 40;
  size_t highest = 1;
  const auto all = spread.histogram(bars);
  for (const auto& bar : all) highest = std::max(highest, bar.count);
  fmt::print("\n{}\n", styled(title, Style::bold));
  for (const auto& bar : all)
    fmt::print("{:>6} - {:<6} {:>7}  {}\n", grouped(bar.from), grouped(bar.to),
               grouped(static_cast<int64_t>(bar.count)),
               std::string((bar.count * columns + highest - 1) / highest, '#'));
}

void print_packing(const DataStatistics& found, const OpenStage& opened) {
  fmt::print("\n{}\n", styled("packing", Style::bold));
  fmt::print("  {} in {} and {} of {} and {}, {:.1f} samples a pack\n",
             counted(static_cast<int64_t>(found.all.frames.count()), "sample"), counted(found.steps, "step"),
             counted(found.packs, "pack"), counted(found.capacity.frames, "frame"),
             counted(found.capacity.rows, "token"), found.samples_a_pack.mean());
  fmt::print("  filled: {} of the frames, {} of the tokens\n", percent(found.fill_of_frames()),
             percent(found.fill_of_rows()));
  fmt::print("  padding: {} of the tokens that training computes; {} if each step were a batch padded to its longest "
             "sample\n",
             percent(found.packing_waste()), percent(found.padding_waste()));
  const Advice advice = advice_of(opened, found);
  const PackSize& suggested = advice.packing;
  if (suggested.frames == found.capacity.frames && suggested.rows == found.capacity.rows) return;
  fmt::print("  {} packing = {{ frames = {}, tokens = {} }}\n",
             found.packs_a_step.max() == 1 ? "every step is one pack, and fits in this size, too:"
                                           : "frames and tokens are balanced in packs of about",
             suggested.frames, suggested.rows);
  std::vector<std::string> lengths;
  for (const auto& [name, length] : advice.lengths) lengths.push_back(fmt::format("{} = {}", name, length));
  if (!lengths.empty())
    fmt::print("  together with {} in the stage's fvlm.mix, the most that these samples have: a pack has to hold the "
               "largest sample that they allow\n",
               join(lengths, ", "));
}

void print_statistics(const OpenStage& opened, const DataStatistics& found) {
  fmt::print("{}: the first {} of the stage\n\n", styled(opened.stage.name, Style::bold),
             counted(static_cast<int64_t>(found.all.frames.count()), "sample"));
  print_sources(found);
  print_histogram("text tokens", found.all.tokens);
  print_histogram("frames", found.all.frames);
  print_packing(found, opened);
  if (found.broken + found.left_out > 0)
    fmt::print("\n{} skipped (quarantined), {} dropped:\n  {}\n", counted(found.broken, "broken sample"),
               grouped(found.left_out), strip_control_characters(join(found.reasons, "\n  ")));
}

int data_stats(Arguments arguments) {
  Options options(
      "data stats RECIPE [--stage S] [--samples N] [--json]",
      "Print statistics of a stage's samples, read as training does but without pixels: lengths, sources, what\n"
      "max_text_tokens truncates, and how full the packs get. Also decodes the first 50: exit code 4 where so many\n"
      "are broken that training would stop.",
      "data stats recipes/quickstart.lua --stage instruct");
  with_stage_options(options).value("samples", "N", "number of samples; default 2000");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const int64_t samples = parsed->integer_or("samples", 2000, 1);
  OpenStage opened(*parsed);
  Progress progress("reading");
  const auto padding = train::padding_of(opened.resolved.plan, *opened.data, at::Device(default_device()));
  const auto found = opened.data->statistics(samples, padding, [&](int64_t done) { progress.samples(done, samples); });
  progress.finish();
  if (found.all.frames.count() == 0)
    throw Error(ErrorKind::data, "no sample can be used for training:\n  " + join(found.reasons, "\n  "))
        .at("stage " + opened.stage.name);
  if (parsed->flag("json"))
    print_json(opened, found);
  else
    print_statistics(opened, found);
  // The statistics need no pixels, so a few samples are decoded to notice broken ones here, too.
  train::rehearse_samples(opened.data->samples(), opened.data->order(), opened.resolved.plan.loader,
                          "stage " + opened.stage.name);
  return 0;
}

// The frames side by side, eight in a row, at the size that the vision tower gets.
Image contact_sheet(std::span<const float> frames, const Sample& sample, const FramePreparation& preparation) {
  const int64_t size = preparation.image_size(), count = sample.distinct_frames() * sample.copies;
  constexpr int64_t max_columns = 8, gap = 2;
  const int64_t columns = std::min(count, max_columns), rows = (count + columns - 1) / columns;
  Image image;
  image.width = columns * (size + gap) - gap;
  image.height = rows * (size + gap) - gap;
  image.rgb.assign(static_cast<size_t>(image.width * image.height * 3), 255);
  std::vector<uint8_t> frame(static_cast<size_t>(size * size * 3));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t left = i % columns * (size + gap), top = i / columns * (size + gap);
    preparation.denormalise(frames.subspan(static_cast<size_t>(i / sample.copies) * frame.size(), frame.size()), frame);
    for (int64_t y = 0; y < size; ++y)
      std::copy_n(frame.begin() + y * size * 3, size * 3, image.rgb.begin() + ((top + y) * image.width + left) * 3);
  }
  return image;
}

// Marks the tokens that have a loss: in green, or between [[ ]] without colour.
std::string with_marked_labels(const Tokenizer& tokenizer, const SampleText& text, const std::vector<bool>& has_loss) {
  const bool colour = color_on(1);
  std::string all;
  for (size_t begin = 0; begin < text.ids.size();) {
    size_t end = begin;
    while (end < text.ids.size() && has_loss[end] == has_loss[begin]) ++end;
    const std::string span =
        strip_control_characters(decode_with_placeholders(tokenizer, std::span(text.ids).subspan(begin, end - begin)));
    if (!has_loss[begin])
      all += span;
    else
      all += colour ? styled(span, Style::green) : "[[" + span + "]]";
    begin = end;
  }
  return all;
}

// Of --images: the files, and what is drawn on them.
struct WrittenImages {
  std::vector<std::string> files;
  std::vector<ImageMark> marks;
};

WrittenImages write_images(const MarkedImages& marked, const std::string& folder) {
  WrittenImages written{{}, marked.marks};
  std::filesystem::create_directories(folder);
  for (const Image& image : marked.images) {
    written.files.push_back((std::filesystem::path(folder) / fmt::format("{}.png", written.files.size())).string());
    write_file_atomic(written.files.back(), write_png(image));
  }
  return written;
}

std::string place_text(const ImageMark& mark) {
  return fmt::format("[{:.6g}]", fmt::join(mark.place, ", "));
}

void print_images(const WrittenImages& written) {
  fmt::print("images: {}\n", written.files.empty() ? "it has none" : join(written.files, ", "));
  if (written.marks.empty()) return;
  TextTable table({"object", "color", "image", "pixels", "name"});
  for (const ImageMark& mark : written.marks)
    table.row({fmt::format("{}", mark.number), mark_color(mark.number).name,
               written.files.at(static_cast<size_t>(mark.image)), place_text(mark),
               strip_control_characters(mark.name)});
  fmt::print("{}", table.text());
}

Json images_json(const WrittenImages& written) {
  Json objects = Json::array();
  for (const ImageMark& mark : written.marks)
    objects.push_back({{"number", mark.number},
                       {"color", mark_color(mark.number).name},
                       {"image", mark.image},
                       {"pixels", mark.place},
                       {"name", mark.name}});
  return {{"files", written.files}, {"objects", objects}};
}

// Of a retrieval sample's inputs; of others null.
const char* role_name(Sample::Role role) {
  constexpr const char* names[] = {nullptr, "query", "positive", "negative"};
  return names[static_cast<size_t>(role)];
}

Json sample_json(const MeasuredSample& measured, const plan::Stage& stage, const std::string& picture) {
  const Sample& sample = *measured.sample;
  Json texts = Json::array();
  for (const auto& part : packed_parts(measured.sample))
    for (const SampleText& text : part->texts) {
      Json mask = Json::array();
      for (bool has_loss : objective::labels(text, stage.objective)) mask.push_back(has_loss ? 1 : 0);
      texts.push_back({{"token_ids", text.ids}, {"loss_mask", mask}});
      if (const char* role = role_name(part->role)) texts.back()["role"] = role;
    }
  return {{"position", measured.drawn.position},
          {"epoch", measured.drawn.epoch},
          {"key", sample.key},
          {"shard", measured.skipped.place},
          {"source", sample.source},
          {"frames", sample.frames},
          {"texts", texts},
          {"picture", picture}};
}

// Sources repeat, so there is a sample at every position: prints its epoch, and whether it is past the end of the
// stage, which training only reaches if it skips samples.
void print_position(const DrawnSample& drawn, const plan::Stage& stage, const std::vector<int64_t>& sizes) {
  fmt::print("sample {} of the stage's {}: pass {} over the {} of its source{}\n", grouped(drawn.position),
             grouped(stage.samples), grouped(drawn.epoch + 1), counted(sizes.at(drawn.source), "sample"),
             drawn.position < stage.samples ? "" : ", after the end of the stage");
}

int data_show(Arguments arguments) {
  Options options(
      "data show RECIPE N [--stage S] [--out SHEET.png] [--images FOLDER] [--json]",
      "Show the sample at position N of a stage as the model sees it: its text, with the tokens that have a loss\n"
      "marked, and with --out its frames side by side in a PNG. --images writes its images as they are, with the "
      "boxes\n"
      "and points of its `objects` drawn on them. The samples of a source come again, in another order, when all were\n"
      "read.",
      "data show recipes/quickstart.lua 0 --stage instruct --out sample.png");
  with_stage_options(options)
      .positional("N", "the sample's position in the stage, from 0")
      .value("out", "FILE", "write the frames to this PNG; none: as without it")
      .value("images", "FOLDER", "write the images with their boxes and points to 0.png, 1.png, ... in this folder");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const int64_t position = parsed->integer_or("N", 0, 0);
  const OpenStage opened(*parsed);
  const train::StageData& data = *opened.data;

  auto state = data.order().begin();
  std::optional<DrawnSample> drawn;
  for (int64_t i = 0; i <= position; ++i) {
    drawn = data.order().next(state);
    if (!drawn)
      throw Error(ErrorKind::usage, "N: the stage's data end after {}, got {}", counted(i, "sample"), position);
  }
  const MeasuredSample measured = measure(data.samples(), *drawn);
  if (!measured.sample) throw Error(ErrorKind::data, measured.skipped.reason).at(place_of(measured.skipped));
  const Sample& sample = *measured.sample;

  std::string picture = parsed->value_or("out", "none");
  if (sample.frames == 0 || !sample.bytes.empty() || picture == "none") picture.clear();
  if (!picture.empty()) {
    std::vector<float> frames(static_cast<size_t>(sample.distinct_frames() * data.samples().frame_elements()));
    data.samples().decode(*drawn, sample, frames);
    write_file_atomic(picture, write_png(contact_sheet(frames, sample, frame_preparation(opened.resolved.plan.model))));
  }
  std::optional<WrittenImages> images;
  if (const auto folder = parsed->value("images"))
    images = write_images(data.source_samples().marked_images(*drawn), *folder);
  if (parsed->flag("json")) {
    Json document = sample_json(measured, opened.stage, picture);
    if (images) document["images"] = images_json(*images);
    fmt::print("{}", dump(document));
    return 0;
  }
  print_position(measured.drawn, opened.stage, data.samples().sizes());
  fmt::print("{} of {}, {}{}\n", styled(sample.key, Style::bold), measured.skipped.place,
             sample.source.empty() ? "" : fmt::format("source {}, ", strip_control_characters(sample.source)),
             counted(sample.frames, "frame"));
  if (!sample.bytes.empty())
    fmt::print("\n{}\n{} that the encoder reads\n",
               strip_control_characters(std::string(sample.bytes.begin(), sample.bytes.end())),
               counted(std::ssize(sample.bytes), "byte"));
  for (const auto& input : sample.inputs)
    fmt::print("\n{}, {}\n{}\n{}, of which the last one's state is the embedding\n",
               styled(role_name(input->role), Style::bold), counted(input->frames, "frame"),
               strip_control_characters(decode_with_placeholders(data.tokenizer(), input->texts.front().ids)),
               counted(input->texts.front().tokens(), "token"));
  for (const SampleText& text : sample.texts) {
    const auto has_loss = objective::labels(text, opened.stage.objective);
    fmt::print("\n{}\n{}, {} with a loss, between [[ and ]]\n", with_marked_labels(data.tokenizer(), text, has_loss),
               counted(text.tokens(), "token"), std::ranges::count(has_loss, true));
  }
  if (!picture.empty())
    fmt::print("frames: {}\n", picture);
  else if (sample.frames > 0 && sample.bytes.empty())
    fmt::print("--out FILE writes its frames as a PNG\n");
  if (images) print_images(*images);
  return 0;
}

} // namespace

int explore_data(Arguments arguments) {
  return run_group("data", "Inspect and check the data of a recipe.", verbs, arguments);
}

} // namespace fvlm::cli
