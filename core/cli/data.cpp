// fvlm-engine data: what the model will see of a stage's data.
#include "base/error.h"
#include "base/file.h"
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"
#include "budget/described_model.h"
#include "cli/data_check.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "data/media/normalise.h"
#include "data/media/write_image.h"
#include "data/stream/read_ahead.h"
#include "objective/labels.h"
#include "train/crew.h"
#include "train/data_rehearsal.h"
#include "train/stage_length.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {
namespace {

int data_stats(Arguments arguments);
int data_show(Arguments arguments);

constexpr Verb verbs[] = {
    {"check", "read and decode every sample once, and list those that are broken", data_check},
    {"stats", "lengths, sources, how full the packs get", data_stats},
    {"show", "one sample as the model sees it", data_show},
};

// A recipe's stage and all that is open for it.
struct Opened {
  explicit Opened(const ParsedOptions& parsed)
      : resolved(recipe::resolve(recipe_request(parsed))), registry(open_registry(parsed)),
        stage(train::with_length(resolved.plan, parsed.value("stage")
                                                    ? stage_named(resolved.plan, *parsed.value("stage"))
                                                    : resolved.plan.stages.front())),
        progress("opening") {
    feed::MixDataOptions options;
    options.progress = [&](const auto&... told) { progress.steps(told...); };
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
  return options.value("stage", "NAME", "of the recipe; default its first")
      .flag("json", "one JSON document on standard output");
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

Json spread_json(const Spread& spread) {
  Json bars = Json::array();
  for (const auto& bar : spread.histogram(20))
    bars.push_back({{"from", bar.from}, {"to", bar.to}, {"count", bar.count}});
  return {{"mean", spread.mean()},
          {"least", spread.least()},
          {"median", spread.quantile(0.5)},
          {"p90", spread.quantile(0.9)},
          {"p99", spread.quantile(0.99)},
          {"most", spread.most()},
          {"histogram", bars}};
}

Json source_json(const SourceStatistics& source) {
  return {{"samples", source.frames.count()},
          {"frames", spread_json(source.frames)},
          {"tokens", spread_json(source.tokens)},
          {"answer_tokens", spread_json(source.answer_tokens)},
          {"cut_samples", source.cut},
          {"cut_tokens", source.cut_tokens},
          {"cut_answer_tokens", source.cut_answer}};
}

void print_json(const Opened& opened, const DataStatistics& found) {
  Json sources = Json::object();
  for (const auto& [name, source] : found.sources) sources[name] = source_json(source);
  const PackSize better = found.suggestion();
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
                               {"suggestion", {{"frames", better.frames}, {"tokens", better.rows}}}}}}));
}

void print_sources(const DataStatistics& found) {
  TextTable table({"source", "samples", "share", "frames mean", "most", "tokens mean", "median", "p90", "most",
                   "answer mean", "cut", "answer tokens cut"});
  const auto line = [&](const std::string& name, const SourceStatistics& source) {
    table.row({without_commands(name), std::to_string(source.frames.count()),
               percent(static_cast<double>(source.frames.count()) / static_cast<double>(found.all.frames.count())),
               fmt::format("{:.1f}", source.frames.mean()), std::to_string(source.frames.most()),
               fmt::format("{:.1f}", source.tokens.mean()), std::to_string(source.tokens.quantile(0.5)),
               std::to_string(source.tokens.quantile(0.9)), std::to_string(source.tokens.most()),
               fmt::format("{:.1f}", source.answer_tokens.mean()), std::to_string(source.cut),
               std::to_string(source.cut_answer)});
  };
  for (const auto& [name, source] : found.sources) line(name, source);
  if (found.sources.size() > 1) line("all", found.all);
  fmt::print("{}", table.text());
}

void print_histogram(const char* title, const Spread& spread) {
  constexpr size_t bars = 12, columns = 40;
  size_t highest = 1;
  const auto all = spread.histogram(bars);
  for (const auto& bar : all) highest = std::max(highest, bar.count);
  fmt::print("\n{}\n", styled(title, Style::bold));
  for (const auto& bar : all)
    fmt::print("{:>6} - {:<6} {:>7}  {}\n", bar.from, bar.to, bar.count,
               std::string((bar.count * columns + highest - 1) / highest, '#'));
}

void print_packing(const DataStatistics& found) {
  fmt::print("\n{}\n", styled("packing", Style::bold));
  fmt::print("  {} samples in {} steps and {} packs of {} frames and {} tokens, {:.1f} samples a pack\n",
             found.all.frames.count(), found.steps, found.packs, found.capacity.frames, found.capacity.rows,
             found.samples_a_pack.mean());
  fmt::print("  filled: {} of the frames, {} of the tokens\n", percent(found.fill_of_frames()),
             percent(found.fill_of_rows()));
  fmt::print("  padding: {} of the tokens that training computes; {} if each step were a batch as long as its longest "
             "sample\n",
             percent(found.packing_waste()), percent(found.padding_waste()));
  const PackSize better = found.suggestion();
  if (better.frames == found.capacity.frames && better.rows == found.capacity.rows) return;
  fmt::print("  {} packing = {{ frames = {}, tokens = {} }}\n",
             found.packs_a_step.most() == 1 ? "every step is one pack, which this holds, too:"
                                            : "frames and tokens run out together in packs of about",
             better.frames, better.rows);
}

void print_statistics(const Opened& opened, const DataStatistics& found) {
  fmt::print("{}: the first {} samples of the stage\n\n", styled(opened.stage.name, Style::bold),
             found.all.frames.count());
  print_sources(found);
  print_histogram("text tokens", found.all.tokens);
  print_histogram("frames", found.all.frames);
  print_packing(found);
  if (found.broken + found.left_out > 0)
    fmt::print("\n{} broken samples were set aside, {} left out by max_text_tokens:\n  {}\n", found.broken,
               found.left_out, without_commands(join(found.reasons, "\n  ")));
}

// As training on this machine would compute the packs. A model that is not there yet is taken for a large one.
train::PackPadding padding_of(const plan::Plan& plan) {
  train::PackPadding padding;
  const std::string device = best_device();
  padding.on_gpu = device != "cpu";
  try {
    padding.parts = train::crew_for(budget::describe(plan), at::Device(device)).parts;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
  }
  return padding;
}

int data_stats(Arguments arguments) {
  Options options(
      "data stats RECIPE [--stage S] [--samples N] [--json]",
      "Reads samples of a stage as training would, without their pixels, and says what they are like: how long,\n"
      "from where, what max_text_tokens cuts, and how full the packs get. Decodes the first 50 as well: exit code 4\n"
      "where training would stop at those that are broken.",
      "data stats recipes/quickstart.lua --stage instruct");
  with_stage_options(options).value("samples", "N", "how many; default 2000");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const int64_t samples = parsed->integer_or("samples", 2000);
  if (samples < 1) throw Error(ErrorKind::usage, "--samples wants 1 or more");
  Opened opened(*parsed);
  Progress progress("reading");
  const auto found = opened.data->statistics(samples, padding_of(opened.resolved.plan),
                                             [&](int64_t done) { progress.samples(done, samples); });
  progress.finish();
  if (found.all.frames.count() == 0)
    throw Error(ErrorKind::data, "there is no sample to learn from:\n  " + join(found.reasons, "\n  "))
        .at("stage " + opened.stage.name);
  if (parsed->flag("json"))
    print_json(opened, found);
  else
    print_statistics(opened, found);
  // Pixels are not among the statistics: a few are decoded, so that broken ones are noticed here, too.
  train::rehearse_samples(opened.data->samples(), opened.data->order(), opened.resolved.plan.loader,
                          "stage " + opened.stage.name);
  return 0;
}

// Side by side, eight in a row, as the tower gets them.
Image sheet(std::span<const float> frames, int64_t count, int64_t size) {
  constexpr int64_t most_columns = 8, gap = 2;
  const int64_t columns = std::min(count, most_columns), rows = (count + columns - 1) / columns;
  Image image;
  image.width = columns * (size + gap) - gap;
  image.height = rows * (size + gap) - gap;
  image.rgb.assign(static_cast<size_t>(image.width * image.height * 3), 255);
  std::vector<uint8_t> frame(static_cast<size_t>(size * size * 3));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t left = i % columns * (size + gap), top = i / columns * (size + gap);
    denormalise(frames.subspan(static_cast<size_t>(i) * frame.size(), frame.size()), frame);
    for (int64_t y = 0; y < size; ++y)
      std::copy_n(frame.begin() + y * size * 3, size * 3, image.rgb.begin() + ((top + y) * image.width + left) * 3);
  }
  return image;
}

// Learnt tokens stand out: in green, or between brackets where there is no colour.
std::string marked(const Tokenizer& tokenizer, const SampleText& text, const std::vector<bool>& learnt) {
  const bool colour = color_on(1);
  std::string all;
  for (size_t begin = 0; begin < text.ids.size();) {
    size_t end = begin;
    while (end < text.ids.size() && learnt[end] == learnt[begin]) ++end;
    const std::string span = without_commands(tokenizer.decode(std::span(text.ids).subspan(begin, end - begin)));
    if (!learnt[begin])
      all += span;
    else
      all += colour ? styled(span, Style::green) : "[[" + span + "]]";
    begin = end;
  }
  return all;
}

Json sample_json(const Measured& measured, const plan::Stage& stage, const std::string& picture) {
  const Sample& sample = *measured.sample;
  Json texts = Json::array();
  for (const SampleText& text : sample.texts) {
    Json mask = Json::array();
    for (bool learnt : objective::labels(text, stage.objective)) mask.push_back(learnt ? 1 : 0);
    texts.push_back({{"token_ids", text.ids}, {"loss_mask", mask}});
  }
  return {{"position", measured.drawn.position},
          {"key", sample.key},
          {"shard", measured.aside.place},
          {"source", sample.source},
          {"frames", sample.frames},
          {"texts", texts},
          {"picture", picture}};
}

int data_show(Arguments arguments) {
  Options options(
      "data show RECIPE N [--stage S] [--out SHEET.png] [--json]",
      "Shows the sample at position N of a stage as the model sees it: its tokens, those that are learnt marked,\n"
      "and its frames side by side in a picture.",
      "data show recipes/quickstart.lua 0 --stage instruct");
  with_stage_options(options)
      .positional("N", "the sample's position in the stage, from 0")
      .value("out", "FILE", "where the picture goes; default sample-N.png; none: no picture");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const int64_t position = parsed->integer_or("N", 0);
  if (position < 0) throw Error(ErrorKind::usage, "N counts from 0");
  const Opened opened(*parsed);
  const train::StageData& data = *opened.data;

  auto state = data.order().begin();
  std::optional<Drawn> drawn;
  for (int64_t i = 0; i <= position; ++i) {
    drawn = data.order().next(state);
    if (!drawn) throw Error(ErrorKind::usage, fmt::format("the stage's data end after {} samples", i));
  }
  const Measured measured = measure(data.samples(), *drawn);
  if (!measured.sample)
    throw Error(ErrorKind::data, measured.aside.reason)
        .at(fmt::format("{}: sample '{}'", measured.aside.place, measured.aside.key));
  const Sample& sample = *measured.sample;

  std::string picture = parsed->value_or("out", fmt::format("sample-{}.png", position));
  if (sample.frames == 0 || picture == "none") picture.clear();
  if (!picture.empty()) {
    std::vector<float> frames(static_cast<size_t>(sample.frames * data.samples().frame_elements()));
    data.samples().decode(*drawn, sample, frames);
    write_file_atomic(picture, write_png(sheet(frames, sample.frames, opened.resolved.plan.model.image_size)));
  }
  if (parsed->flag("json")) {
    fmt::print("{}", dump(sample_json(measured, opened.stage, picture)));
    return 0;
  }
  fmt::print("{} of {}, source {}, {} frames\n", styled(sample.key, Style::bold), measured.aside.place,
             without_commands(sample.source), sample.frames);
  for (const SampleText& text : sample.texts) {
    const auto learnt = objective::labels(text, opened.stage.objective);
    fmt::print("\n{}\n{} tokens, {} of them learnt\n", marked(data.tokenizer(), text, learnt), text.ids.size(),
               std::count(learnt.begin(), learnt.end(), true));
  }
  if (!picture.empty()) fmt::print("frames: {}\n", picture);
  return 0;
}

} // namespace

int explore_data(Arguments arguments) {
  return run_group("data", "What the model will see of a recipe's data.", verbs, arguments);
}

} // namespace fvlm::cli
