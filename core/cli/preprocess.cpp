// fvlm-engine preprocess: tokenizes, decodes and resizes the data of a recipe's stages once.
#include "data/preprocess.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "data/media/video.h"
#include "model/weights/visual_rows.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// Whether the folder exists and matches the recipe; logs the reason where it does not match.
bool is_up_to_date(const fs::path& folder, const PreprocessInput& input) {
  if (!fs::exists(folder / "manifest.json")) return false;
  auto reason = stale_reason(folder, input);
  if (reason) log_info("{}: preprocessing again: {}", folder.string(), *reason);
  return !reason;
}

void warn_of_broken(const fs::path& folder, const Preprocessed& done) {
  if (done.broken == 0) return;
  log_warning("{}: {} of {} samples are broken{}", folder.string(), done.broken, done.samples,
              static_cast<size_t>(done.broken) > done.reasons.size() ? ", the first of them:" : ":");
  for (const auto& reason : done.reasons) log_warning("  {}", reason);
}

} // namespace

int run_preprocess(Arguments arguments) {
  Options options(
      "preprocess RECIPE [--stage S] --out DIR [--threads N] [--set PATH=VALUE] [--arg NAME=VALUE]",
      "Tokenize, decode and resize the samples of each stage once, into shards below DIR that training reads\n"
      "much faster. A folder that still matches the recipe is kept; one that does not is written again.",
      "preprocess recipes/quickstart.lua --out data/preprocessed");
  add_recipe_options(options);
  with_plugin_options(options);
  options.value("stage", "S", "preprocess this stage alone")
      .required_value("out", "DIR", "output folder; each stage gets a subfolder of its name")
      .value("threads", "N", "default: one per core; does not change the data")
      .flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  auto resolved = recipe::resolve(recipe_request(*parsed));
  const int64_t threads = parsed->integer_or("threads", 0, 1, 1024);
  const PreprocessOptions how{.threads = static_cast<int>(threads), .quarantine = resolved.plan.loader.quarantine};

  const auto registry = open_registry(*parsed);
  auto document = nlohmann::ordered_json::array();
  const auto& stages = resolved.plan.stages;
  const auto only = parsed->value("stage");
  for (const plan::Stage& stage : only ? std::span(&stage_named(resolved.plan, *only), 1) : std::span(stages)) {
    const fs::path folder = fs::path(*parsed->value("out")) / stage.name;
    const PreprocessInput input = preprocess_input(resolved.plan, stage.data, visual_rows(resolved.plan.model));
    const auto video =
        stage.data.has_frames() ? choose_video_decoder(*registry, resolved.plan.kernels["video"]) : std::nullopt;
    const bool fresh = is_up_to_date(folder, input);
    Preprocessed done;
    const double started = steady_seconds();
    if (!fresh) {
      const InterruptibleWrites interruptible;
      Progress progress("preprocessing " + stage.name);
      done = preprocess(folder, input, video ? &*video : nullptr, how,
                        [&](int64_t read, int64_t all) { progress.samples(read, all); });
    }
    const double seconds = steady_seconds() - started;
    document.push_back({{"stage", stage.name}, {"folder", folder.string()}, {"made", !fresh}});
    if (!fresh)
      document.back().update(
          {{"samples", done.samples}, {"broken", done.broken}, {"bytes", done.bytes}, {"seconds", seconds}});
    warn_of_broken(folder, done);
    if (parsed->flag("json")) continue;
    if (fresh)
      fmt::print("{}: up to date\n", folder.string());
    else
      fmt::print("{}: {}, {}, written in {:.1f} s\n", folder.string(), counted(done.samples, "sample"),
                 human_bytes(done.bytes), seconds);
  }
  if (parsed->flag("json"))
    fmt::print("{}", dump(document));
  else
    fmt::print("To use it, set `preprocessed = \"{}\"` in the fvlm.mix of the stage {}{}\n",
               document[0]["folder"].get<std::string>(), document[0]["stage"].get<std::string>(),
               document.size() > 1 ? ", and so in the others" : "");
  return 0;
}

} // namespace fvlm::cli
