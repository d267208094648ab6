#include "train/rank_view.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::train {
namespace {

std::string library_of(const Manifest& manifest) {
  if (manifest.file.empty()) return "builtin";
  std::error_code absent;
  if (!std::filesystem::exists(manifest.library_path(), absent)) return "without its library";
  return "library " + sha256_file(manifest.library_path()).substr(0, 16);
}

// A line of each: what, and how this rank has it.
std::string view_of(const recipe::Resolved& resolved, const Registry& registry, at::Device device) {
  std::vector<std::string> lines = {fmt::format("fvlm-engine: {}", FVLM_VERSION),
                                    fmt::format("the plan's hash: {}", resolved.hash),
                                    fmt::format("the device: {}", device.is_cuda() ? "cuda" : "cpu")};
  for (const FoundPlugin& plugin : registry.found()) {
    const Manifest& manifest = plugin.manifest;
    lines.push_back(fmt::format("the plugin {}: {}, {}", manifest.name, manifest.version, library_of(manifest)));
  }
  std::sort(lines.begin(), lines.end());
  return join(lines, "\n");
}

} // namespace

void require_equal_views(const dist::Ranks& ranks, const recipe::Resolved& resolved, const Registry& registry,
                         at::Device device) {
  if (!ranks.are_several()) return;
  const std::string own = view_of(resolved, registry, device), first = ranks.from_first(own);
  if (own == first) return;
  const auto here = split(own, '\n'), there = split(first, '\n');
  std::vector<std::string> only_here, only_there;
  std::set_difference(here.begin(), here.end(), there.begin(), there.end(), std::back_inserter(only_here));
  std::set_difference(there.begin(), there.end(), here.begin(), here.end(), std::back_inserter(only_there));
  throw Error(ErrorKind::usage,
              fmt::format("rank {} is not set up as rank 0 is:\n  rank {} has {}\n  rank 0 has {}", ranks.rank(),
                          ranks.rank(), only_here.empty() ? "nothing besides" : join(only_here, "; "),
                          only_there.empty() ? "nothing besides" : join(only_there, "; ")))
      .advise("start every rank with the same program, recipe, arguments and plugins");
}

} // namespace fvlm::train
