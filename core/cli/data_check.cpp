#include "cli/data_check.h"

#include "base/error.h"
#include "base/table.h"
#include "base/terminal.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "data/stream/check_samples.h"
#include "feed/mix_data.h"

#include <fmt/format.h>

#include <set>

namespace fvlm::cli {
namespace {

// A mix of the recipe with the name that messages use for it.
struct NamedMix {
  std::string name;
  const plan::Mix& mix;
  int64_t texts; // see MixSamples
};

struct CheckedMix {
  std::string name;
  std::string open_error; // empty where it could be opened
  CheckedSamples samples;

  bool good() const { return open_error.empty() && samples.broken() == 0; }
};

std::vector<NamedMix> mixes_of(const plan::Plan& plan, const std::optional<std::string>& only) {
  std::vector<NamedMix> mixes;
  for (const plan::Stage& stage : plan.stages) {
    if (only && stage.name != *only) continue;
    mixes.push_back({stage.name, stage.data, stage.texts_in_data()});
    for (const plan::EvaluationSet& set : stage.evaluation.sets)
      mixes.push_back({fmt::format("{}, evaluation set {}", stage.name, set.name), set.data, 0});
  }
  return mixes;
}

// Mixes with the same key hold the same samples, whatever their weights.
std::string key_of(const NamedMix& named) {
  const plan::Mix& mix = named.mix;
  std::string key = fmt::format("{} {} {} {} {} {}", named.texts, mix.max_frames, mix.max_text_tokens,
                                mix.replicate_image_frames, mix.mask_history, mix.preprocessed.value_or(""));
  for (const plan::Source& source : mix.sources) {
    key += source.text_only() ? "\ntext" : "\nshards";
    for (const auto& pattern : source.patterns()) key += " " + pattern;
    key += "\nroot " + source.root.value_or("");
    for (const auto& [part, field] : source.fields) key += fmt::format(" {}={}", part, field);
  }
  return key;
}

CheckedMix check_mix(const plan::Plan& plan, const NamedMix& named, Registry& registry, int threads) {
  CheckedMix mix{named.name, {}, {}};
  Progress progress(named.name);
  try {
    feed::MixDataOptions options;
    options.texts = named.texts;
    options.progress = [&](const auto&... step) { progress.steps(step...); };
    const feed::MixData data(plan, named.mix, registry, options);
    int64_t all = 0;
    for (const int64_t size : data.samples().sizes()) all += size;
    mix.samples = check_samples(data.samples(), Order::once(data.samples().sizes()), 0, threads,
                                [&](int64_t done) { progress.samples(done, all); });
    auto damage = data.samples().damage();
    mix.samples.skipped.insert(mix.samples.skipped.begin(), damage.begin(), damage.end());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    mix.open_error = error.text();
  }
  progress.finish();
  return mix;
}

Json as_json(const CheckedMix& mix) {
  Json wrong = Json::array();
  for (const SkippedSample& skipped : mix.samples.skipped)
    wrong.push_back({{"file", skipped.place},
                     {"key", skipped.key},
                     {"kind", name_of(skipped.skip)},
                     {"reason", skipped.reason},
                     {"broken", skipped.broken}});
  Json json{{"data", mix.name}, {"good", mix.good()}};
  if (!mix.open_error.empty()) json["error"] = mix.open_error;
  for (const auto& [name, number] : numbers_of(mix.samples.counts)) json[name] = static_cast<int64_t>(number);
  json["skipped"] = wrong;
  return json;
}

void print(const CheckedMix& mix) {
  if (!mix.open_error.empty()) {
    fmt::print("{}: {}\n\n", styled(mix.name, Style::bold), strip_control_characters(mix.open_error));
    return;
  }
  TextTable table({"file", "sample", "reason"});
  for (const SkippedSample& skipped : mix.samples.skipped)
    table.row({strip_control_characters(skipped.place), strip_control_characters(skipped.key),
               strip_control_characters(skipped.reason)});
  if (!mix.samples.skipped.empty()) fmt::print("{}", table.text());
  fmt::print("{}: {}\n{}", styled(mix.name, Style::bold), mix.samples.counts.text(),
             mix.samples.skipped.empty() ? "" : "\n");
}

void print_verdict(bool opened, bool good, bool all_used) {
  if (opened && good)
    fmt::print("{}\n", styled(all_used ? "every sample can be used"
                                       : "no sample is broken; those listed are left out of training",
                              Style::green));
  if (!opened)
    fmt::print("{}\n",
               styled("some of the data could not be opened: correct what the recipe says of them", Style::red));
  if (!good) fmt::print("{}\n", styled("some samples are broken: repair or remove them", Style::red));
}

} // namespace

int data_check(Arguments arguments) {
  Options options(
      "data check RECIPE [--stage S] [--threads N] [--json]",
      "Decode every sample of a recipe's stages and evaluation sets once, and list those that training would\n"
      "skip: file, sample and reason. Exit code 0: none is broken; 4: some are.",
      "data check recipes/quickstart.lua");
  add_recipe_options(options);
  with_plugin_options(options);
  options.value("stage", "NAME", "check this stage alone, with its evaluation sets")
      .value("threads", "N", "default: one per core")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const int64_t threads = parsed->integer_or("threads", 0, 1, 1024);
  const auto resolved = recipe::resolve(recipe_request(*parsed));
  require_positions(resolved);
  const auto only = parsed->value("stage");
  if (only) stage_named(resolved.plan, *only);
  const auto registry = open_registry(*parsed);

  bool opened = true, good = true, all_used = true;
  Json document = Json::array();
  std::set<std::string> seen;
  for (const NamedMix& named : mixes_of(resolved.plan, only)) {
    if (!seen.insert(key_of(named)).second) continue;
    const CheckedMix mix = check_mix(resolved.plan, named, *registry, static_cast<int>(threads));
    opened = opened && mix.open_error.empty();
    good = good && mix.samples.broken() == 0;
    all_used = all_used && mix.samples.skipped.empty();
    if (parsed->flag("json"))
      document.push_back(as_json(mix));
    else
      print(mix);
  }
  if (parsed->flag("json"))
    fmt::print("{}", dump(document));
  else
    print_verdict(opened, good, all_used);
  return opened && good ? 0 : static_cast<int>(ErrorKind::data);
}

} // namespace fvlm::cli
