// fvlm-engine plugin check: runs the conformance tests on a plugin, in a separate process.
#include "base/error.h"
#include "base/terminal.h"
#include "check/supervisor.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "ops/reference.h"
#include "plugin/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

struct Target {
  check::Job job;
  std::optional<Manifest> manifest;
};

void apply_manifest(const Manifest& manifest, Target& target) {
  target.manifest = manifest;
  target.job.library = manifest.library_path().string();
  check::DeclaredPlugin declared{
      manifest.name, manifest.version, {}, fmt::format("{}.{}", manifest.abi_major, manifest.abi_minor)};
  for (const KindName& kind : manifest.kinds) declared.kinds.push_back(kind.text());
  target.job.declared = declared;
}

// Accepts a folder or its plugin.toml, a library with or without a manifest beside it, or an installed plugin's name.
Target find_plugin(const std::string& name, const ParsedOptions& parsed) {
  Target target;
  if (name == "reference") return target;
  std::error_code none;
  const fs::path path = name;
  if (fs::is_directory(path, none) || path.extension() == ".toml") {
    apply_manifest(Registry::manifest_of(path), target);
  } else if (fs::is_regular_file(path, none)) {
    target.job.library = fs::canonical(path).string();
    if (fs::exists(fs::canonical(path).parent_path() / "plugin.toml"))
      if (Manifest manifest = Registry::manifest_of(path); fs::equivalent(manifest.library_path(), path, none))
        apply_manifest(manifest, target);
  } else if (is_path(name)) {
    throw Error(ErrorKind::usage, "no such file or folder").at(name).advise("name a plugin's folder or library");
  } else {
    Registry registry(registry_options(parsed));
    for (const FoundPlugin& plugin : registry.found())
      if (plugin.manifest.name == name) apply_manifest(plugin.manifest, target);
    if (target.job.library.empty()) unknown_plugin(registry, name, "there is no plugin of this name");
  }
  return target;
}

void list_checks() {
  size_t rows = 0;
  for (const check::Table& table : check::tables()) {
    fmt::print("{}\n", styled(table.family, Style::bold));
    for (const check::Check& row : table.checks) fmt::print("  {:<30} {}\n", row.name, row.proves);
    for (const check::Benchmark& row : table.benchmarks)
      fmt::print("  {:<30} {}\n", std::string("bench.") + row.name, row.measures);
    rows += table.checks.size();
  }
  fmt::print("\n{} checks\n", rows);
}

Json checks_json() {
  Json families = Json::array();
  for (const check::Table& table : check::tables()) {
    Json checks = Json::array();
    for (const check::Check& row : table.checks) checks.push_back({{"name", row.name}, {"proves", row.proves}});
    for (const check::Benchmark& row : table.benchmarks)
      checks.push_back({{"name", std::string("bench.") + row.name}, {"measures", row.measures}});
    families.push_back({{"family", table.family}, {"checks", checks}});
  }
  return families;
}

} // namespace

int check_plugin(Arguments arguments) {
  if (arguments.size() == 2 && arguments[0] == "--child") {
    initialize_device(check::job_from(arguments[1]).device);
    check::run_child(arguments[1], ops::reference_entry);
  }
  Options options(
      "plugin check FILE|NAME [--quick] [--bench] [--only TEXT[,...]] [--json]",
      "Run the conformance tests of the ABI on a plugin, in a separate process, so that a crash or a hang counts\n"
      "as a failed check. FILE is a plugin's folder, its plugin.toml or a bare library; NAME is an installed plugin\n"
      "or 'reference'. Takes up to three minutes, with --quick less than one. Exit code 5: a check failed.",
      "plugin check ./my-plugin --bench");
  with_plugin_options(options)
      .positional("FILE", "a plugin's folder, plugin.toml or library, or an installed plugin's name", false)
      .flag("quick", "skip the checks with large sizes or many runs")
      .flag("bench", "also measure speed and memory against the reference")
      .value("only", "TEXT[,...]", "run only the checks whose name contains one of these: 'causal,rotary'")
      .value("time-limit", "SECONDS", "limit of one check; default 60; measurements get ten times as long")
      .value("device", "cpu|cuda", "device of the tensors; default cpu")
      .flag("list", "list the checks without running them")
      .flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  if (parsed->flag("list")) {
    if (parsed->flag("json"))
      fmt::print("{}", dump(checks_json()));
    else
      list_checks();
    return 0;
  }
  const auto name = parsed->value("FILE");
  if (!name) throw Error(ErrorKind::usage, "FILE is missing").advise("usage: fvlm-engine plugin check FILE");

  const Target target = find_plugin(*name, *parsed);
  check::Job job = target.job;
  job.bench = parsed->flag("bench");
  job.quick = parsed->flag("quick");
  job.only = parsed->value_or("only", "");
  job.device = parsed->value_or("device", "cpu");
  initialize_device(job.device);
  const bool json = parsed->flag("json");
  const int64_t limit = parsed->integer_or("time-limit", 60, 1);

  if (!job.library.empty() && check::is_selected(job, "library.loads"))
    job.refusal = trial_load_refusal(job.library, target.manifest, job.device, {});

  check::Supervision supervision;
  supervision.command = {fs::read_symlink("/proc/self/exe").string(), "plugin", "check", "--child"};
  supervision.limit = std::chrono::seconds(limit);
  if (!json)
    supervision.on_entry = [](const check::Entry& entry) {
      fmt::print("{}", check::line_of(entry));
      std::fflush(stdout);
    };
  check::Report report = check::check_plugin(job, supervision);
  if (report.plugin.empty() && report.library.empty()) report.plugin = "reference";
  const auto asked_for = [&](const check::Entry& entry) { return check::is_selected(job, entry.name); };
  if (report.passed() && std::ranges::none_of(report.entries, asked_for))
    throw Error(ErrorKind::usage, "no check's name contains '{}'", job.only)
        .advise("fvlm-engine plugin check --list shows them all");
  if (json)
    fmt::print("{}", dump(report.json()));
  else
    fmt::print("{}", report.summary());
  return report.passed() ? 0 : static_cast<int>(ErrorKind::plugin);
}

} // namespace fvlm::cli
