#include "train/rank_view.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "device/probe.h"
#include "dist/nccl_library.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <unistd.h>

namespace fvlm::train {
namespace {

constexpr double max_clock_difference = 60; // seconds

std::string library_of(const Manifest& manifest) {
  if (manifest.file.empty()) return "builtin";
  std::error_code absent;
  if (!std::filesystem::exists(manifest.library_path(), absent)) return "without its library";
  return "library " + sha256_file(manifest.library_path()).substr(0, 16);
}

RankView own_view(const Registry& registry, at::Device device, const std::string& plan_hash) {
  RankView view;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  view.host = host;
  view.device = "cpu";
  view.lines = {fmt::format("fvlm-engine: {}", FVLM_VERSION),
                fmt::format("the device: {}", device.is_cuda() ? "cuda" : "cpu")};
  if (!plan_hash.empty()) view.lines.push_back(fmt::format("the plan's hash: {}", plan_hash));
  if (device.is_cuda()) {
    const auto gpus = device::probe_cuda().devices; // of which the rank sees its own alone
    if (!gpus.empty()) {
      const device::CudaDevice& gpu = gpus.front();
      view.device = fmt::format("{} at {}", gpu.name, gpu.bus);
      view.lines.push_back(fmt::format("the GPU: {}, sm_{}{}", gpu.name, gpu.capability_major, gpu.capability_minor));
    }
    view.lines.push_back(fmt::format("NCCL: {}", dist::nccl::version()));
  }
  for (const FoundPlugin& plugin : registry.found()) {
    const Manifest& manifest = plugin.manifest;
    view.lines.push_back(fmt::format("the plugin {}: {}, {}", manifest.name, manifest.version, library_of(manifest)));
  }
  std::ranges::sort(view.lines);
  return view;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// "rank 1 (node2) has A; rank 0 has B"; empty: nothing differs.
std::string difference(const std::vector<RankView>& views, size_t rank) {
  const RankView &here = views[rank], &there = views[0];
  std::vector<std::string> only_here, only_there;
  std::set_difference(here.lines.begin(), here.lines.end(), there.lines.begin(), there.lines.end(),
                      std::back_inserter(only_here));
  std::set_difference(there.lines.begin(), there.lines.end(), here.lines.begin(), here.lines.end(),
                      std::back_inserter(only_there));
  if (only_here.empty() && only_there.empty()) return "";
  return fmt::format("rank {} ({}) is not set up as rank 0 ({}) is:\n  rank {} has {}\n  rank 0 has {}", rank,
                     here.host, there.host, rank, only_here.empty() ? "nothing besides" : join(only_here, "; "),
                     only_there.empty() ? "nothing besides" : join(only_there, "; "));
}

} // namespace

std::vector<RankView> rank_views(const dist::Ranks& ranks, const Registry& registry, at::Device device,
                                 const std::string& plan_hash) {
  RankView own = own_view(registry, device, plan_hash);
  ranks.from_first(""); // from here on all read their clocks at once
  own.clock = seconds_now();
  const nlohmann::json text = {own.host, own.device, own.lines, own.clock};
  std::vector<RankView> views;
  for (const std::string& each : ranks.gather(text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    const auto view = nlohmann::json::parse(each);
    views.push_back({view[0].get<std::string>(), view[1].get<std::string>(), view[2].get<std::vector<std::string>>(),
                     view[3].get<double>()});
  }
  return views;
}

double clock_difference(const std::vector<RankView>& views) {
  const auto [least, most] = std::minmax_element(
      views.begin(), views.end(), [](const RankView& a, const RankView& b) { return a.clock < b.clock; });
  return most->clock - least->clock;
}

void require_equal(const std::vector<RankView>& views) {
  std::vector<std::string> differences;
  for (size_t rank = 1; rank < views.size(); ++rank)
    if (const std::string text = difference(views, rank); !text.empty()) differences.push_back(text);
  if (!differences.empty())
    throw Error(ErrorKind::usage, join(differences, "\n"))
        .advise("start every rank with the same program, recipe, arguments and plugins, on GPUs of one kind");
  if (const double apart = clock_difference(views); apart > max_clock_difference) {
    const auto fast = std::ranges::max_element(views, {}, &RankView::clock);
    throw Error(ErrorKind::usage,
                "the clocks of the ranks differ by {:.0f} s, and {:.0f} s are allowed: that of rank {} ({}) is ahead",
                apart, max_clock_difference, fast - views.begin(), fast->host)
        .advise("set the machines' clocks by NTP: metrics and logs of a run that moves between them depend on it");
  }
}

void require_equal_views(const dist::Ranks& ranks, const recipe::Resolved& resolved, const Registry& registry,
                         at::Device device, int64_t zero) {
  if (!ranks.are_several()) return;
  const std::string how = zero > 0 ? fmt::format(", with --zero {}", zero) : ""; // ranks reduce by it, in one order
  require_equal(rank_views(ranks, registry, device, resolved.hash + how));
}

} // namespace fvlm::train
