// fvlm-engine plugin info: prints a plugin's manifest and what its tables offer.
#include "base/hash.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace fvlm::cli {
namespace {

struct Fact {
  std::string key, value;
};

Json kernels_facts(const PluginTable& table, std::vector<Fact>& facts) {
  std::vector<std::string> operations(table.operations.begin(), table.operations.end());
  facts.push_back({"operations", join(operations, ", ")});
  return {{"operations", operations}};
}

Json optimizer_facts(const PluginTable& given, std::vector<Fact>& facts) {
  const auto& table = *static_cast<const fvlm_optimizer_v1*>(given.table);
  Json all = Json::array();
  for (int32_t i = 0; i < table.hyperparameter_count; ++i) {
    const fvlm_hyperparameter& one = table.hyperparameters[i];
    std::string name = printable(one.name);
    facts.push_back({name, fmt::format("default {:g}, from {:g} to {:g}", one.fallback, one.least, one.most)});
    all.push_back({{"name", name}, {"fallback", one.fallback}, {"least", one.least}, {"most", one.most}});
  }
  return {{"hyperparameters", all}};
}

Json quantizer_facts(const PluginTable& given, std::vector<Fact>& facts) {
  int32_t bits = static_cast<const fvlm_quantizer_v1*>(given.table)->bits;
  facts.push_back({"bits", std::to_string(bits)});
  return {{"bits", bits}};
}

Json loss_facts(const PluginTable& given, std::vector<Fact>& facts) {
  bool fused = static_cast<const fvlm_loss_v1*>(given.table)->fused != nullptr;
  facts.push_back({"fused", fused ? "yes: loss and gradients in one call" : "no"});
  return {{"fused", fused}};
}

// Facts about a table that depend on its family. Families without any are only listed.
Json table_facts(const PluginTable& table, std::vector<Fact>& facts) {
  using FactsFunction = Json (*)(const PluginTable&, std::vector<Fact>&);
  static const std::map<std::string_view, FactsFunction> by_family = {
      {KindOf<fvlm_kernels_v1>::family, kernels_facts},
      {KindOf<fvlm_optimizer_v1>::family, optimizer_facts},
      {KindOf<fvlm_quantizer_v1>::family, quantizer_facts},
      {KindOf<fvlm_loss_v1>::family, loss_facts}};
  auto facts_of = by_family.find(table.family->name);
  return facts_of == by_family.end() ? Json::object() : facts_of->second(table, facts);
}

std::string sha256_of(const LoadedPlugin& plugin) {
  if (plugin.library.empty()) return "";
  return plugin.sha256.empty() ? sha256_file(plugin.library) : plugin.sha256;
}

Json info_json(const LoadedPlugin& plugin) {
  Json document = manifest_json(plugin.manifest, plugin.origin);
  document["state"] = "ready";
  document["sha256"] = sha256_of(plugin);
  document["abi_in_use"] = fmt::format("{}.{}", FVLM_ABI_MAJOR, plugin.abi_minor);
  document["tables"] = Json::object();
  std::vector<Fact> ignored;
  for (const PluginTable& table : plugin.tables) document["tables"][table.kind.text()] = table_facts(table, ignored);
  return document;
}

void print_facts(const std::vector<Fact>& facts) {
  size_t width = 0;
  for (const Fact& fact : facts) width = std::max(width, fact.key.size());
  for (const Fact& fact : facts) fmt::print("  {:<{}}  {}\n", fact.key, width, fact.value);
}

void print_info(const LoadedPlugin& plugin) {
  const Manifest& manifest = plugin.manifest;
  fmt::print("{} {}\n{}\n\n", styled(manifest.name, Style::bold), manifest.version, manifest.description);
  std::vector<Fact> facts;
  if (!manifest.license.empty()) facts.push_back({"license", manifest.license});
  facts.push_back({"from", std::string(origin_name(plugin.origin))});
  if (!plugin.library.empty()) {
    facts.push_back({"library", plugin.library.string()});
    facts.push_back({"sha256", sha256_of(plugin)});
  }
  facts.push_back({"devices", join(manifest.devices, ", ")});
  if (!manifest.architectures.empty()) facts.push_back({"architectures", join(manifest.architectures, ", ")});
  facts.push_back({"ABI", fmt::format("{}.{}, of the manifest's {}.{}", FVLM_ABI_MAJOR, plugin.abi_minor,
                                      manifest.abi_major, manifest.abi_minor)});
  if (!manifest.unknown_kinds.empty()) facts.push_back({"unknown here", join(manifest.unknown_kinds, ", ")});
  print_facts(facts);
  for (const PluginTable& table : plugin.tables) {
    fmt::print("\n{}\n", styled(table.kind.text(), Style::bold));
    std::vector<Fact> of_table;
    table_facts(table, of_table);
    print_facts(of_table);
  }
}

const LoadedPlugin& load_named(Registry& registry, const std::string& name) {
  if (is_path(name)) return registry.load_file(name);
  std::string reason;
  if (const LoadedPlugin* plugin = registry.load(name, &reason)) return *plugin;
  unknown_plugin(registry, name, reason);
}

} // namespace

int run_plugin_info(Arguments arguments) {
  Options options("plugin info PLUGIN [--json]", "Describe a plugin: its manifest, and what its tables offer.",
                  "plugin info attention-cpu");
  options.positional("PLUGIN", "its name, or the path of its library or folder");
  with_plugin_options(options).flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  auto registry = open_registry_and_reprobe(*parsed);
  const LoadedPlugin& plugin = load_named(*registry, *parsed->value("PLUGIN"));
  if (parsed->flag("json"))
    fmt::print("{}", dump(info_json(plugin)));
  else
    print_info(plugin);
  return 0;
}

} // namespace fvlm::cli
