// fvlm-engine plugin: the group of plugin verbs, and `plugin list`, which also says why plugins are refused.
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "plugin/selection.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

constexpr Verb members[] = {
    {"list", "list the plugins that were found, and why some are refused", run_plugin_list},
    {"info", "describe one plugin", run_plugin_info},
    {"check", "run the conformance tests on a plugin", run_in_module<&TensorModule::plugin_check>},
    {"new", "create a plugin from a template, in C, C++, CUDA, Rust or Zig", run_plugin_new},
    {"trust", "add a plugin's hash to the lock file", run_plugin_trust},
};

// Short forms for a table column: "attention", "optimizer:adamw".
std::string short_kinds(const Manifest& manifest) {
  std::vector<std::string> all;
  for (const KindName& kind : manifest.kinds) {
    std::string label(find_family(kind.family)->label);
    all.push_back(kind.variant.empty() ? label : label + ":" + kind.variant);
  }
  return join(all, " ");
}

// Built-in plugins are not opened for a list, because that would load LibTorch.
std::string state_of(const FoundPlugin& plugin) {
  if (plugin.refusal) return "refused";
  return plugin.origin == Origin::builtin ? "built in" : plugin.loaded ? "ready" : "not opened";
}

Json list_json(Registry& registry) {
  Json document = {{"plugins", Json::array()}, {"refused", Json::array()}, {"fused_kernel_backends", Json::object()}};
  for (const FoundPlugin& plugin : registry.found()) {
    Json one = manifest_json(plugin.manifest, plugin.origin);
    one["state"] = state_of(plugin);
    if (plugin.refusal) one["reason"] = *plugin.refusal;
    document["plugins"].push_back(one);
  }
  for (const Refusal& refusal : registry.refusals())
    document["refused"].push_back(
        {{"name", refusal.name}, {"where", refusal.where.string()}, {"reason", refusal.reason}});
  for (const auto& [plugin, operations] : fused_backends(registry))
    document["fused_kernel_backends"][plugin] = operations;
  return document;
}

void print_list(Registry& registry) {
  TextTable table({"plugin", "version", "kinds", "devices", "from", "state"});
  for (const FoundPlugin& plugin : registry.found())
    table.row({plugin.manifest.name, plugin.manifest.version, short_kinds(plugin.manifest),
               join(plugin.manifest.devices, " "), std::string(origin_name(plugin.origin)), state_of(plugin)});
  fmt::print("{}\n{}\n", table.text(), fused_backends_line(registry));
  auto refusals = registry.refusals();
  if (refusals.empty()) return;
  fmt::print("\n{}\n", styled("Refused", Style::bold));
  for (const Refusal& refusal : refusals)
    fmt::print("  {}: {}\n    {}\n", styled(refusal.name.empty() ? "-" : refusal.name, Style::yellow),
               refusal.where.empty() ? "\"\"" : printable(refusal.where.string()), refusal.reason);
}

} // namespace

int run_plugin_list(Arguments arguments) {
  Options options("plugin list [--json]", "List the plugins that were found, and which were refused and why.",
                  "plugin list --plugin-dir ~/my-plugins");
  with_plugin_options(options).flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  auto registry = open_registry_and_reprobe(*parsed);
  for (const FoundPlugin& plugin : registry->found())
    if (plugin.origin != Origin::builtin) registry->load(plugin.manifest.name);
  if (parsed->flag("json"))
    fmt::print("{}", dump(list_json(*registry)));
  else
    print_list(*registry);
  return 0;
}

int run_plugin(Arguments arguments) {
  return run_group("plugin", "Manage plugins: shared libraries that add kernels, losses, optimizers and more.", members,
                   arguments);
}

} // namespace fvlm::cli
