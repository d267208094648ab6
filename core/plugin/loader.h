// Opens a plugin's library and takes over what it gives, once it has passed every check.
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
#include <vector>

namespace fvlm {

enum class Origin {
  builtin,   // linked into the engine
  bundled,   // came with the program: in its lib/fvlm/plugins, as its build noted it
  installed, // laid there by somebody else
  directory, // --plugin-dir
  path,      // FVLM_PLUGIN_PATH
  file       // named by the user
};
std::string_view origin_name(Origin origin);

// A table the engine uses: its own copy, as large as the engine knows it, 0 where the plugin's was shorter.
struct PluginTable {
  KindName kind;
  const Family* family;
  const void* table;
  uint32_t declared_size;                   // what the plugin's struct_size said
  std::vector<std::string_view> operations; // kernels: those it has

  bool has(std::string_view operation) const {
    return std::find(operations.begin(), operations.end(), operation) != operations.end();
  }
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
    return found ? static_cast<const Table*>(found->table) : nullptr;
  }
};

// A library that crashes, exits or hangs while it is loaded would take the engine with it. So a child process loads it
// first. What the child found is remembered by the file's identity and the probing program's.
struct ProbeOptions {
  enum class When {
    remembered, // once a library
    failed,     // as remembered, but what failed is tried again
    always,
    never // this process may die of it
  };
  When when = When::remembered;
  std::filesystem::path program;          // empty: lib/fvlm/plugin-probe beside the program's folder
  std::filesystem::path memory;           // empty: cache_folder()/plugins
  std::chrono::milliseconds limit{10000}; // for loading and asking it
};

// The SHA-256 of each plugin's library that a build made, by the plugin's name.
using BundledHashes = std::map<std::string, std::string>;

struct LoadOptions {
  TrustPolicy trust;
  std::optional<PluginLock> lock;
  BundledHashes bundled;
  bool bundled_only = false;
  ProbeOptions probe;
};

// Called before each step into the plugin's code: "its constructors", "fvlm_plugin_entry_v1()", ...
using StepNotice = std::function<void(std::string_view step)>;

// Whether only root and the user could have written the plugin's folder, manifest and library; returns the library,
// symlinks resolved. Throws Error(plugin).
std::filesystem::path check_plugin_files(const Manifest& manifest, const TrustPolicy& policy);

// Reads notes (NAME.sha256) of a folder that only root, the user and the program's owner can have written to; others
// are passed over with a warning. [setup]
BundledHashes read_bundled_hashes(const std::filesystem::path& folder, const TrustPolicy& policy);

// Checks, probes and loads. The result and the library stay for ever. Throws Error(plugin) saying what is wrong.
// Origin::bundled: a library of the noted hash is neither probed nor looked up in the lock; any other is `installed`.
// With a lock file a private copy is hashed, probed and opened, whatever becomes of the file meanwhile. [setup]
const LoadedPlugin& load_plugin(const Manifest& manifest, Origin origin, const LoadOptions& options);

// A plugin linked into the engine, held to the same checks. `kinds` as a manifest would list them. [setup]
const LoadedPlugin& load_static_plugin(fvlm_plugin_entry_function entry, const Manifest& manifest);

// The part that runs the plugin's code, without trust, lock or probe: what the probing child does. [setup]
const LoadedPlugin& open_plugin(const Manifest& manifest, const std::filesystem::path& library, Origin origin,
                                const StepNotice& notice = {});

// The same for a library without a manifest, held to what it says of itself. `device`: for which sample questions are.
const LoadedPlugin& open_bare_library(const std::filesystem::path& library, const std::string& device,
                                      const StepNotice& notice = {});

} // namespace fvlm
