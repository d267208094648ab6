#include "plugin/adopt.h"

#include "base/error.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>

namespace fvlm {
namespace {

constexpr uint32_t largest_struct = 64 << 10;
const char* const headers_advice = "set it to sizeof the struct of the SDK's headers";

[[noreturn]] void refuse(const std::string& where, std::string what, std::string advice) {
  throw Error(ErrorKind::plugin, std::move(what)).at(where).advise(std::move(advice));
}

// The struct_size of a struct that the plugin filled. It has to be at least the size in ABI minor 0 and, unless the
// plugin was built for a newer minor than the engine, at most the size in the engine's headers.
uint32_t checked_size(const void* pointer, const std::string& what, size_t min_size, size_t known,
                      uint32_t declared_minor, const std::string& where) {
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(void*) != 0)
    refuse(where, fmt::format("{} is not aligned to {} bytes", what, alignof(void*)),
           "return the address of a static struct");
  uint32_t size = 0;
  std::memcpy(&size, pointer, sizeof size);
  if (size == 0) refuse(where, fmt::format("{} has struct_size 0", what), headers_advice);
  if (size < min_size)
    refuse(where,
           fmt::format("{} has struct_size {}, less than the {} of ABI {}.0", what, size, min_size, FVLM_ABI_MAJOR),
           headers_advice);
  if (size > largest_struct || (size > known && declared_minor <= FVLM_ABI_MINOR))
    refuse(where,
           fmt::format("{} has struct_size {}, more than the {} of ABI {}.{} that it was made for", what, size, known,
                       FVLM_ABI_MAJOR, declared_minor),
           headers_advice);
  return size;
}

std::vector<std::string_view> check_operations(const void* table, const Family& family, const std::string& kind,
                                               const std::string& where) {
  std::vector<std::string_view> present;
  for (const TableOperation& operation : family.operations) {
    auto given = [&](const TableSlot& slot) { return slot.is_set(table); };
    auto missing = std::ranges::find_if_not(operation.slots, given);
    if (missing == operation.slots.end()) {
      present.push_back(operation.name);
      continue;
    }
    auto found = std::ranges::find_if(operation.slots, given);
    if (found != operation.slots.end())
      refuse(where, fmt::format("the table of {} has {} but no {}", kind, found->name, missing->name),
             fmt::format("implement all functions of {} or none", operation.name));
  }
  if (!family.operations.empty() && present.empty())
    refuse(where, fmt::format("the table of {} has no operations", kind),
           "remove the kind from plugin.toml, or implement an operation");
  return present;
}

template <class Call>
auto caught(const char* what, const std::string& where, Call&& call) {
  try {
    return call();
  } catch (...) {
    refuse(where, fmt::format("{} threw {}", what, current_exception_text()),
           "a plugin throws nothing across the boundary");
  }
}

// Calls the entry point with a host table for this plugin.
const fvlm_plugin* call_entry(fvlm_plugin_entry_function entry, const std::string& name, const std::string& where) {
  return caught(FVLM_PLUGIN_ENTRY "()", where, [&] { return entry(host_for(name)); });
}

fvlm_plugin checked_plugin(const fvlm_plugin* given, const std::string& where) {
  if (!given)
    refuse(where,
           fmt::format("{}() returned NULL: the plugin does not support ABI {}.{}", FVLM_PLUGIN_ENTRY, FVLM_ABI_MAJOR,
                       FVLM_ABI_MINOR),
           "build it with the headers of this engine");
  // The version fields have the same offsets in all ABI versions. A wrong major version is reported rather than the
  // wrong size that follows from it.
  checked_size(given, "fvlm_plugin", offsetof(fvlm_plugin, name), largest_struct, FVLM_ABI_MINOR, where);
  uint32_t version[2];
  std::memcpy(version, reinterpret_cast<const std::byte*>(given) + offsetof(fvlm_plugin, abi_major), sizeof version);
  if (version[0] != FVLM_ABI_MAJOR)
    refuse(where,
           fmt::format("the library was built for ABI {}.{}; this engine supports {}.{}", version[0], version[1],
                       FVLM_ABI_MAJOR, FVLM_ABI_MINOR),
           version[0] > FVLM_ABI_MAJOR ? "use a newer fvlm-engine"
                                       : "build the plugin with the headers of this engine");
  uint32_t size = checked_size(given, "fvlm_plugin", sizeof(fvlm_plugin), sizeof(fvlm_plugin), version[1], where);
  fvlm_plugin plugin{};
  std::memcpy(&plugin, given, std::min<size_t>(size, sizeof plugin));
  if (!bounded_string(plugin.name))
    refuse(where, "its name is NULL or not terminated", "fvlm_plugin.name is the name of plugin.toml");
  if (!bounded_string(plugin.version))
    refuse(where, "its version is NULL or not terminated", "fvlm_plugin.version is the version of plugin.toml");
  if (!plugin.table) refuse(where, "its function table() is NULL", "fvlm_plugin.table returns the table of each kind");
  return plugin;
}

void check_against(const fvlm_plugin& plugin, const Manifest& manifest, const std::string& where) {
  if (manifest.name != plugin.name)
    refuse(where,
           fmt::format("the library's name is '{}', but its manifest says '{}'", printable(plugin.name), manifest.name),
           "use the same name in both");
  if (manifest.version != plugin.version)
    refuse(where,
           fmt::format("the library's version is '{}', but its manifest says '{}'", printable(plugin.version),
                       manifest.version),
           "install the library and the manifest of the same build");
}

} // namespace

PluginTable adopt_table(const void* table, const KindName& kind, const Family& family, uint32_t declared_minor,
                        fvlm_device device, const std::string& where) {
  static std::mutex mutex;
  static auto& copies = *new std::deque<std::vector<std::uintptr_t>>;
  std::string text = kind.text();
  uint32_t declared = checked_size(table, "the table of " + text, family.min_size, family.size, declared_minor, where);
  std::vector<std::uintptr_t> storage(family.size / sizeof(std::uintptr_t) + 1);
  std::memcpy(storage.data(), table, std::min<size_t>(declared, family.size));
  const void* copy = storage.data();
  for (const TableSlot& slot : family.required)
    if (!slot.is_set(copy))
      refuse(where, fmt::format("the table of {} has no {}", text, slot.name),
             fmt::format("see the SDK's header for {}", family.label));
  PluginTable adopted{kind, &family, copy, declared, check_operations(copy, family, text, where), {}};
  if (std::string defect = family.defect(copy, kind, device); !defect.empty())
    refuse(where, fmt::format("{}: {}", text, defect), "run `fvlm-engine plugin check` on it");
  if (kind.family == FVLM_ATTENTION_KIND) {
    const auto& attention = *static_cast<const fvlm_attention_v1*>(copy);
    if (attention.forward_paged)
      adopted.paged = {attention.base,          attention.supports_paged, attention.requirements_paged,
                       attention.prepare_paged, attention.forward_paged,  attention.features};
  }
  std::lock_guard lock(mutex);
  copies.push_back(std::move(storage));
  return adopted;
}

Manifest manifest_by_itself(fvlm_plugin_entry_function entry, const std::vector<std::string>& kinds,
                            const std::string& device, const std::string& where, const StepNotice& notice) {
  if (notice) notice(FVLM_PLUGIN_ENTRY "()");
  const fvlm_plugin plugin = checked_plugin(call_entry(entry, "a plugin", where), where);
  std::vector<std::string> given;
  for (const std::string& kind : kinds) {
    if (notice) notice(fmt::format("table(\"{}\")", kind));
    if (caught("table()", where, [&] { return plugin.table(kind.c_str()); })) given.push_back(kind);
  }
  if (given.empty())
    refuse(where, "it has no table of a kind that this engine supports",
           "fvlm_plugin.table returns the table of each kind");
  return builtin_manifest(plugin.name, plugin.version, "", given, {device});
}

LoadedPlugin adopt(fvlm_plugin_entry_function entry, const Manifest& manifest, const std::string& where,
                   const StepNotice& notice) {
  auto step = [&](const std::string& text) {
    if (notice) notice(text);
  };
  step(FVLM_PLUGIN_ENTRY "()");
  const fvlm_plugin* given = call_entry(entry, manifest.name, where);
  const fvlm_plugin plugin = checked_plugin(given, where);
  check_against(plugin, manifest, where);
  step("the second call of " FVLM_PLUGIN_ENTRY "()");
  if (call_entry(entry, manifest.name, where) != given)
    refuse(where, fmt::format("{}() returned a different pointer on its second call", FVLM_PLUGIN_ENTRY),
           "return the address of one static struct");

  auto table_of = [&](const std::string& kind) {
    step(fmt::format("table(\"{}\")", kind));
    return caught("table()", where, [&] { return plugin.table(kind.c_str()); });
  };
  if (table_of("fvlm.no-such-kind/1"))
    refuse(where, "table() returned a table for a kind that does not exist",
           "return NULL for every kind that the plugin does not implement");
  fvlm_device device{manifest.on_device("cpu") ? FVLM_CPU : FVLM_CUDA, 0};
  LoadedPlugin loaded{
      manifest, Origin::file, {}, {}, std::min<uint32_t>(plugin.abi_minor, FVLM_ABI_MINOR), host_for(manifest.name),
      {}};
  for (const KindName& kind : manifest.kinds) {
    std::string text = kind.text();
    const void* table = table_of(text);
    if (!table)
      refuse(where, fmt::format("its manifest lists {}, but the library has no table of it", text),
             "remove it from plugin.toml, or implement the table");
    if (table_of(text) != table)
      refuse(where, fmt::format("table(\"{}\") returned a different pointer on its second call", text),
             "return the address of one static table");
    step(fmt::format("supports() of {}", text));
    loaded.tables.push_back(adopt_table(table, kind, *find_family(kind.family), plugin.abi_minor, device, where));
  }
  return loaded;
}

} // namespace fvlm
