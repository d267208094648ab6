#include "train/stage_files.h"

#include "base/error.h"
#include "base/path_hint.h"
#include "budget/described_model.h"
#include "model/loading.h"
#include "model/weights/resolve_model.h"
#include "recipe/files.h"
#include "recipe/names_stage.h"
#include "train/stage_model.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;

bool is_inside(const fs::path& path, const fs::path& folder) {
  std::error_code ignored;
  const fs::path inner = fs::weakly_canonical(path, ignored), outer = fs::weakly_canonical(folder, ignored);
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

} // namespace

void require_stage_files(const recipe::Resolved& resolved, const std::vector<const plan::Stage*>& stages,
                         const StageFilesRequest& request) {
  const auto starts_elsewhere = [&](const plan::Stage& stage) {
    return request.starts_elsewhere && &stage == stages.front();
  };
  std::vector<recipe::MissingFile> missing;
  for (const plan::Stage* stage : stages)
    for (recipe::MissingFile& file : recipe::find_missing_files(resolved, *stage).missing)
      if (!is_inside(file.file, request.run) && !(starts_elsewhere(*stage) && file.path.ends_with(".from")))
        missing.push_back(std::move(file));
  if (!missing.empty()) {
    const auto& [path, file, what, source, unusable] = missing.front();
    const std::string more =
        missing.size() > 1
            ? fmt::format("; `fvlm-engine check RECIPE --files` lists it and {} more", missing.size() - 1)
            : "";
    const std::string start = with_start_of(file);
    throw Error(ErrorKind::data, "{}", what)
        .at(file)
        .advise("{}, {}{}{}", path, source, more, start.empty() ? "" : "\n" + start);
  }
  for (const plan::Stage* stage : stages) {
    if (stage->from.find('/') != std::string::npos && !starts_elsewhere(*stage) && !is_inside(stage->from, request.run))
      ModelDirectory::open(resolve_model(stage->from));
    for (const plan::Term& term : stage->objective) {
      const std::string* teacher = term->teacher();
      if (!teacher || plan::names_stage(resolved.plan, *teacher) || is_inside(*teacher, request.run)) continue;
      const fs::path folder = resolve_model(*teacher);
      check_teacher(resolved.plan, *stage, *term, folder, model::config_of(ModelDirectory::open(folder).description()),
                    model::config_of(budget::describe(resolved.plan)));
    }
  }
}

} // namespace fvlm::train
