// fvlm-engine doctor: shows which devices and libraries the engine can use here, and how to fix what it cannot use.
#include "base/error.h"
#include "base/file.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "cli/torch_library.h"
#include "device/probe.h"
#include "plugin/registry.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <gnu/libc-version.h>
#include <map>

namespace fvlm::cli {
namespace {

enum class State { good, none, busy, slow };

struct Finding {
  std::string subject;
  State state;
  std::string text, advice;
};

Finding of_device(const device::CudaDevice& gpu) {
  const auto use = device::probe_use(gpu);
  Finding finding{fmt::format("cuda:{}", gpu.index), State::good, "", ""};
  finding.text = fmt::format("{}, sm_{}{}, {}", gpu.name, gpu.capability_major, gpu.capability_minor,
                             human_bytes(gpu.memory_bytes));
  if (use.free_bytes) finding.text += fmt::format(", {} free", human_bytes(*use.free_bytes));
  if (const auto obstacle = device::obstacle_on(gpu, use)) {
    finding.state = obstacle->stops ? State::none : State::busy;
    finding.text = obstacle->what;
    finding.advice = obstacle->advice;
  }
  return finding;
}

bool reads_videos(const Manifest& manifest) {
  return std::ranges::any_of(manifest.kinds,
                             [](const KindName& kind) { return kind.family.starts_with("fvlm.video/"); });
}

// Plugins that need a GPU; they only load where there is one.
Finding of_plugins() {
  load_torch_cuda_if_available();
  Registry registry(RegistryOptions::from_environment());
  std::vector<std::string> lines;
  std::map<std::string, std::vector<std::string>> by_refusal; // reason -> names; an empty reason: ready
  for (const FoundPlugin& plugin : registry.found()) {
    if (plugin.manifest.on_device("cpu")) continue;
    std::string why;
    (void)registry.load(plugin.manifest.name, &why);
    by_refusal[why].push_back(plugin.manifest.name);
  }
  if (by_refusal.empty())
    return {"plugins", State::none, "none for CUDA: the reference kernels run instead, slowly",
            "build the engine where nvcc is installed, or set FVLM_PLUGIN_PATH to a folder of plugins"};
  lines.reserve(by_refusal.size());
  for (const auto& [why, names] : by_refusal)
    lines.push_back(fmt::format("{}: {}", join(names, ", "), why.empty() ? "ready" : why));
  const bool all_ready = by_refusal.size() == 1 && by_refusal.contains("");
  return {"plugins", all_ready ? State::good : State::none, join(lines, "; "),
          all_ready ? "" : "`fvlm-engine plugin list` shows each of them"};
}

// What threads and instructions it lacks makes training slower. `gpus` wait for frames that it decodes.
Finding of_processor(size_t gpus) {
  constexpr size_t threads_a_gpu = 4;
  const auto cpu = device::probe_cpu();
  Finding finding{"processor", State::good,
                  fmt::format("{}, {} threads, {}", cpu.name, cpu.threads, join(cpu.features, " ")), ""};
  const auto has = [&](const char* feature) { return std::ranges::find(cpu.features, feature) != cpu.features.end(); };
  if (!has("avx2") || !has("fma")) {
    finding.state = State::slow;
    finding.advice = "without AVX2 and FMA most plugins for the CPU do not run: the reference, which is slower, takes "
                     "their place";
  } else if (static_cast<size_t>(cpu.threads) < threads_a_gpu * gpus) {
    finding.state = State::slow;
    finding.advice =
        "so few threads may decode frames slower than a GPU takes them: where `train` prints a data wait, give "
        "it more processors, or decode the frames once with `fvlm-engine preprocess`";
  }
  return finding;
}

// Plugins for the CPU, but for those that read videos: in place of what is refused, the reference runs.
Finding of_cpu_plugins(Registry& registry) {
  std::vector<std::string> ready, refused;
  for (const FoundPlugin& plugin : registry.found()) {
    const Manifest& manifest = plugin.manifest;
    if (!manifest.on_device("cpu") || plugin.origin == Origin::builtin || reads_videos(manifest)) continue;
    std::string why;
    if (registry.load(manifest.name, &why))
      ready.push_back(manifest.name);
    else
      refused.push_back(fmt::format("{}: {}", manifest.name, why));
  }
  if (ready.empty() && refused.empty())
    return {"CPU", State::slow, "no plugins: the reference runs instead, slowly",
            "keep the folder lib/fvlm/plugins beside the program's folder, or set FVLM_PLUGIN_PATH"};
  if (!ready.empty()) ready = {join(ready, ", ") + ": ready"};
  ready.insert(ready.end(), refused.begin(), refused.end());
  return {"CPU", refused.empty() ? State::good : State::slow, join(ready, "; "),
          refused.empty() ? "" : "what is refused runs as the reference, slower; `fvlm-engine plugin list` shows each"};
}

Finding of_videos(Registry& registry) {
  std::vector<std::string> refused;
  for (const FoundPlugin& plugin : registry.found()) {
    if (!reads_videos(plugin.manifest)) continue;
    std::string why;
    if (registry.load(plugin.manifest.name, &why)) return {"video", State::good, plugin.manifest.name + ": ready", ""};
    refused.push_back(fmt::format("{}: {}", plugin.manifest.name, why));
  }
  return {"video", State::none,
          refused.empty() ? "no plugin reads mp4 files; images and GIFs are read" : join(refused, "; "),
          refused.empty()
              ? "build the engine where FFmpeg's libraries are installed (./scripts/setup), which makes the "
                "plugin video-ffmpeg"
              : "`fvlm-engine plugin list` shows each of them"};
}

void add_plugins_of_cpu(std::vector<Finding>& all) {
  try {
    Registry registry(RegistryOptions::from_environment());
    all.push_back(of_cpu_plugins(registry));
    all.push_back(of_videos(registry));
  } catch (const Error& error) {
    all.push_back({"CPU", State::none, error.what(), error.advice()});
  }
}

std::vector<Finding> findings() {
  std::vector<Finding> all;
  const auto cuda = device::probe_cuda();
  all.push_back(of_processor(cuda.devices.size()));
  all.push_back({"glibc", State::good, gnu_get_libc_version(), ""});
  try {
    TorchLibrary torch = find_torch();
    all.push_back({"LibTorch", State::good,
                   fmt::format("{} in {}, found by {}", torch.version, torch.folder.string(), torch.found_by),
                   join(torch.passed_over, "; ")});
  } catch (const Error& error) {
    all.push_back({"LibTorch", State::none, error.what(), error.advice()});
  }
  if (cuda.devices.empty())
    all.push_back({"CUDA", State::none, cuda.problem + "; training runs on the CPU", cuda.advice});
  for (const auto& gpu : cuda.devices) all.push_back(of_device(gpu));
  if (!cuda.devices.empty()) try {
      all.push_back(of_plugins());
    } catch (const Error& error) {
      all.push_back({"plugins", State::none, error.what(), error.advice()});
    }
  add_plugins_of_cpu(all);
  try {
    all.push_back({"cache", State::good, cache_folder().string(), ""});
  } catch (const Error& error) {
    all.push_back({"cache", State::none, error.what(), error.advice()});
  }
  return all;
}

// As one of several processes that a launcher started, which the module tells for sure.
bool may_be_a_rank() {
  return std::getenv("WORLD_SIZE") || std::getenv("SLURM_STEP_NUM_TASKS");
}

// Before anything else: it decides which GPU this process sees.
RankReport rank_report() {
  try {
    return tensor_module().rank_report();
  } catch (const Error& error) {
    RankReport report;
    report.problem = error.what();
    report.advice = error.advice();
    return report;
  }
}

Finding of_ranks(const RankReport& report) {
  if (report.problem.empty()) return {"ranks", State::good, report.text, join(report.lines, "\n                ")};
  return {"ranks", State::none, report.problem, report.advice};
}

std::string mark_of(State state) {
  switch (state) {
  case State::good:
    return styled("ok  ", Style::green);
  case State::busy:
    return styled("busy", Style::yellow);
  case State::slow:
    return styled("slow", Style::yellow);
  case State::none:
    break;
  }
  return styled("none", Style::yellow);
}

} // namespace

int run_doctor(Arguments arguments) {
  Options options(
      "doctor [--json]",
      "Show which devices, libraries and plugins the engine can use, and what would be faster. Exit code 0: it can\n"
      "train; 6: LibTorch is missing. Started by torchrun or srun, also compare the ranks; 2: they cannot train "
      "together.",
      "doctor");
  options.flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const RankReport ranks = may_be_a_rank() ? rank_report() : RankReport();
  auto all = findings();
  const bool can_train = std::ranges::all_of(
      all, [](const Finding& finding) { return finding.subject != "LibTorch" || finding.state == State::good; });
  int code = can_train ? 0 : static_cast<int>(ErrorKind::device);
  if (ranks.ranks > 1 || !ranks.problem.empty()) all.push_back(of_ranks(ranks));
  if (can_train && !ranks.problem.empty()) code = static_cast<int>(ErrorKind::usage);
  if (ranks.rank > 0) return code; // the first one says the same
  if (parsed->flag("json")) {
    auto document = nlohmann::ordered_json::object();
    for (const auto& finding : all)
      document[finding.subject] = {
          {"ok", finding.state == State::good}, {"text", finding.text}, {"advice", finding.advice}};
    fmt::print("{}", dump(document));
    return code;
  }
  for (const auto& finding : all) {
    fmt::print("{} {:<10} {}\n", mark_of(finding.state), finding.subject, finding.text);
    if (!finding.advice.empty()) fmt::print("                {}\n", finding.advice);
  }
  return code;
}

} // namespace fvlm::cli
