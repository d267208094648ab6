// fvlm-engine doctor: what of this machine the engine can use, and what to do about the rest.
#include "base/error.h"
#include "base/file.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/options.h"
#include "cli/torch_library.h"
#include "device/probe.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gnu/libc-version.h>

namespace fvlm::cli {
namespace {

struct Finding {
  std::string subject;
  bool good;
  std::string text;
};

std::vector<Finding> findings() {
  std::vector<Finding> all;
  auto cpu = device::probe_cpu();
  all.push_back({"processor", true, fmt::format("{}, {} threads, {}", cpu.name, cpu.threads, join(cpu.features, " "))});
  all.push_back({"glibc", true, gnu_get_libc_version()});
  try {
    TorchLibrary torch = find_torch();
    all.push_back({"LibTorch", true, fmt::format("{} in {}", torch.version, torch.folder.string())});
  } catch (const Error& error) {
    all.push_back({"LibTorch", false, error.text()});
  }
  auto cuda = device::probe_cuda();
  if (cuda.devices.empty()) all.push_back({"CUDA", false, cuda.problem + "; training runs on the CPU"});
  for (const auto& gpu : cuda.devices)
    all.push_back({fmt::format("cuda:{}", gpu.index), true,
                   fmt::format("{}, sm_{}{}, {}", gpu.name, gpu.capability_major, gpu.capability_minor,
                               human_bytes(gpu.memory_bytes))});
  all.push_back({"cache", true, cache_folder().string()});
  return all;
}

} // namespace

int run_doctor(Arguments arguments) {
  Options options("doctor [--json]", "Says what of this machine the engine can use.", "doctor");
  options.flag("json", "one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  auto all = findings();
  if (parsed->flag("json")) {
    auto document = nlohmann::ordered_json::object();
    for (const auto& finding : all) document[finding.subject] = {{"ok", finding.good}, {"text", finding.text}};
    fmt::print("{}\n", document.dump(2));
    return 0;
  }
  for (const auto& finding : all)
    fmt::print("{} {:<10} {}\n", finding.good ? styled("ok  ", Style::green) : styled("none", Style::yellow),
               finding.subject, finding.text);
  return 0;
}

} // namespace fvlm::cli
