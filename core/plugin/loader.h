// Checks a plugin's library, opens it and copies its tables.
#pragma once
#include "plugin/host.h"
#include "plugin/lock.h"
#include "plugin/manifest.h"
#include "plugin/trust.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace fvlm {

enum class Origin {
  builtin,   // linked into the engine
  bundled,   // in the program's lib/fvlm/plugins, with the hash that the build recorded
  installed, // in lib/fvlm/plugins, but not of this build
  directory, // --plugin-dir
  path,      // FVLM_PLUGIN_PATH
  file       // named by the user
};
std::string_view origin_name(Origin origin);

// The engine's copy of a table, as large as in the engine's headers, with zeros where the plugin's was shorter.
struct PluginTable {
  KindName kind;
  const Family* family;
  const void* table;
  uint32_t declared_size;                   // the plugin's struct_size
  std::vector<std::string_view> operations; // of kernels: those that it implements
  std::optional<PagedAttentionTable> paged; // of attention: where the plugin has it

  bool has(std::string_view operation) const { return std::ranges::find(operations, operation) != operations.end(); }
};

struct LoadedPlugin {
  Manifest manifest;
  Origin origin;
  std::filesystem::path library; // symlinks resolved; empty for a builtin
  std::string sha256;            // empty for a builtin
  uint32_t abi_minor;            // min of the engine's and the plugin's
  const fvlm_host* host;
  std::vector<PluginTable> tables;

  const std::string& name() const { return manifest.name; }
  const PluginTable* find(const KindName& kind) const;

  template <class Table>
  const Table* table(std::string_view variant = {}) const {
    const PluginTable* found = find({std::string(KindOf<Table>::family), std::string(variant)});
    if constexpr (std::is_same_v<Table, PagedAttentionTable>)
      return found && found->paged ? &*found->paged : nullptr;
    else
      return found ? static_cast<const Table*>(found->table) : nullptr;
  }
};

// A library that crashes, exits or hangs while it is loaded would take the engine with it, so a child process loads it
// first. The result is cached by the library's hash and the child program's identity.
struct ProbeOptions {
  enum class When {
    cached, // unless there is a cached result
    failed, // unless the cached result is good
    always,
    never // for a process that may crash, such as the child itself
  };
  When when = When::cached;
  std::filesystem::path program;          // empty: lib/fvlm/plugin-probe beside the program's folder
  std::filesystem::path memory;           // the folder of cached results; empty: cache_folder()/plugins
  std::chrono::milliseconds limit{10000}; // of the child process
};

// The SHA-256 of each plugin's library in the program's build, by plugin name.
using BundledHashes = std::map<std::string, std::string>;

struct LoadOptions {
  TrustPolicy trust;
  std::optional<PluginLock> lock;
  BundledHashes bundled;
  bool bundled_only = false;
  ProbeOptions probe;
};

// Called before each call into the plugin's code, with its description: "its constructors", "fvlm_plugin_entry_v1()",
// ...
using StepNotice = std::function<void(std::string_view step)>;

// Verifies that only root and the user can write to the plugin's folder, manifest and library. Returns the library's
// path with symlinks resolved. Throws Error(plugin).
std::filesystem::path check_plugin_files(const Manifest& manifest, const TrustPolicy& policy);

// Reads the hashes (NAME.sha256) that the build recorded in a folder. A file that anybody but root, the user and the
// program's owner could write is skipped with a warning. [setup]
BundledHashes read_bundled_hashes(const std::filesystem::path& folder, const TrustPolicy& policy);

// Checks, probes and loads. The result and the library are never unloaded. Throws Error(plugin). A library with
// Origin::bundled and the recorded hash is neither probed nor looked up in the lock file; with another hash it becomes
// Origin::installed. With a lock file, a private copy is hashed, probed and opened, so that later writes to the file
// have no effect. [setup]
const LoadedPlugin& load_plugin(const Manifest& manifest, Origin origin, const LoadOptions& options);

// Loads a plugin that is linked into the engine, with the same checks of its tables. [setup]
const LoadedPlugin& load_static_plugin(fvlm_plugin_entry_function entry, const Manifest& manifest);

// Opens a library without the checks of trust, lock file and probe: for the probing child itself. [setup]
const LoadedPlugin& open_plugin(const Manifest& manifest, const std::filesystem::path& library, Origin origin,
                                const StepNotice& notice);

// The same for a library without a manifest: see manifest_by_itself(). `device`: of the sample queries.
const LoadedPlugin& open_bare_library(const std::filesystem::path& library, const std::string& device,
                                      const StepNotice& notice);

} // namespace fvlm
