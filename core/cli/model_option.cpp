#include "cli/model_option.h"

#include "base/error.h"
#include "base/log.h"
#include "base/path_hint.h"
#include "model/weights/model_file.h"
#include "recipe/resolve.h"

#include <charconv>
#include <optional>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// The newest checkpoint in a stage's folder. Unfinished and damaged ones are not called step-NUMBER.
std::optional<fs::path> newest_checkpoint(const fs::path& stage) {
  std::optional<fs::path> newest;
  int64_t newest_step = -1;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(stage, none)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view prefix = "step-";
    int64_t step = 0;
    if (!name.starts_with(prefix) || !fs::exists(entry.path() / ModelFile::name, none)) continue;
    const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
    if (error != std::errc() || end != name.data() + name.size() || step <= newest_step) continue;
    newest_step = step;
    newest = entry.path();
  }
  return newest;
}

std::optional<fs::path> newest_of_run(const fs::path& run) {
  recipe::Request request;
  request.file = run / "plan.json";
  const plan::Plan plan = recipe::resolve(request).plan;
  for (auto stage = plan.stages.rbegin(); stage != plan.stages.rend(); ++stage)
    if (auto found = newest_checkpoint(run / stage->name)) return found;
  return std::nullopt;
}

} // namespace

fs::path resolve_model(const std::string& given) {
  const fs::path path(given);
  std::error_code ignored;
  if (fs::exists(path / ModelFile::name, ignored)) return path;
  const bool is_run = fs::exists(path / "plan.json", ignored);
  if (const auto newest = is_run ? newest_of_run(path) : newest_checkpoint(path)) {
    log_info("{}: using its newest checkpoint, {}", given, newest->string());
    return *newest;
  }
  if (is_run)
    throw Error(ErrorKind::data, "this run has no finished checkpoint yet")
        .at(given)
        .advise("`fvlm-engine train` writes them as the recipe's `checkpoint` says, and at the end of each stage");
  return path; // opening it reports what is wrong
}

} // namespace fvlm::cli
