#include "cli/rank_report.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "train/rank_view.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {

RankReport report_of_ranks() {
  const auto launch = dist::launch_of_environment();
  if (!launch || launch->ranks < 2) return {};
  dist::choose_gpu(*launch);
  std::string device = default_device();
  try {
    initialize_device(device);
  } catch (const Error& error) { // the others hear that this one has no GPU
    log_warning("rank {}: {}", launch->rank, error.text());
    device = "cpu";
  }
  const auto ranks = dist::Ranks::join(*launch, at::kCPU, std::chrono::seconds(60));
  const auto registry = open_registry(RegistryOptions::from_environment());
  const auto views = train::rank_views(*ranks, *registry, at::Device(device));
  RankReport report{ranks->rank(), ranks->count(), {}, {}, {}, {}};
  for (size_t rank = 0; rank < views.size(); ++rank)
    report.lines.push_back(fmt::format("rank {}: {}, {}", rank, views[rank].host, views[rank].device));
  const auto plugins =
      std::ranges::count_if(views[0].lines, [](const std::string& line) { return line.starts_with("the plugin "); });
  std::vector<std::string> all;
  for (const std::string& line : views[0].lines)
    if (!line.starts_with("the plugin ")) all.push_back(line);
  report.text = fmt::format("{} ranks: {}; {}; clocks within {:.3f} s", ranks->count(), join(all, ", "),
                            counted(plugins, "plugin"), train::clock_difference(views));
  try {
    train::require_equal(views);
  } catch (const Error& error) {
    report.problem = error.what();
    report.advice = error.advice();
  }
  return report;
}

} // namespace fvlm::cli
