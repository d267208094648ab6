// Finds plugins, and records why some cannot be used. A library is opened when a kind that its manifest lists is
// requested for the first time.
#pragma once
#include "plugin/loader.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fvlm {

// The devices of this machine, which decide whether a library is opened.
struct DevicesHere {
  bool cuda = false;
  std::string problem;                           // why there is no CUDA device
  std::vector<std::pair<int, int>> capabilities; // (9, 0) for sm_90
};
DevicesHere probe_devices();

struct RegistryOptions {
  std::vector<std::filesystem::path> directories; // --plugin-dir, first wins
  std::string path;                               // FVLM_PLUGIN_PATH
  std::filesystem::path bundled;                  // empty: none
  bool bundled_only = false;
  std::optional<DevicesHere> devices; // empty: probed when a plugin first needs it
  LoadOptions load;

  // FVLM_PLUGIN_PATH, the program's lib/fvlm/plugins with the hashes that the build recorded, and the user's lock file
  // if there is one.
  static RegistryOptions from_environment();
};

struct Refusal {
  std::string name;            // of the plugin; of its folder where the manifest cannot be read
  std::filesystem::path where; // folder, library or path entry
  std::string reason;
};

// A plugin that was found, by its manifest. `loaded` is set once its library was opened.
struct FoundPlugin {
  Manifest manifest;
  Origin origin;
  const LoadedPlugin* loaded = nullptr;
  std::optional<std::string> refusal; // why it cannot be used here
};

template <class Table>
struct Candidate {
  const LoadedPlugin* plugin;
  const Table* table;
};

// [any thread]
class Registry {
 public:
  explicit Registry(RegistryOptions options); // reads manifests, opens nothing

  // Adds a plugin that is linked into the engine, at the end of the search order; its name is reserved. `entry` is
  // called when the plugin is first used.
  void add_static(Manifest manifest, std::function<fvlm_plugin_entry_function()> entry);

  // All plugins, in search order, without opening any. A plugin with the name of a bundled one hides it, unless it was
  // opened and turned out to be broken.
  std::vector<FoundPlugin> found() const;
  // Everything refused so far: folders, path entries, manifests, duplicate names, libraries.
  std::vector<Refusal> refusals() const;

  // Opens the library if it is not open yet. Null where there is none or it was refused, with the reason in `reason`.
  const LoadedPlugin* load(const std::string& name, std::string* reason = nullptr);

  // Why there is no plugin whose name satisfies `is_meant`: the reason of its refusal, else the places that could not
  // be searched.
  std::string why_absent(const std::function<bool(const std::string& name)>& is_meant) const;

  // The plugins whose manifest lists this kind, in search order. Opens only those that hide a bundled one.
  std::vector<FoundPlugin> implementing(const KindName& kind);

  // All usable tables of a kind, in search order. Opens the libraries.
  template <class Table>
  std::vector<Candidate<Table>> candidates(std::string_view variant = {}) {
    KindName kind{std::string(KindOf<Table>::family), std::string(variant)};
    std::vector<Candidate<Table>> all;
    for (const FoundPlugin& plugin : implementing(kind))
      if (const LoadedPlugin* loaded = load(plugin.manifest.name))
        if (const Table* table = loaded->table<Table>(variant)) all.push_back({loaded, table});
    return all;
  }

  // Loads one plugin by the path of its library, plugin.toml or folder, without adding it. Throws Error(plugin).
  const LoadedPlugin& load_file(const std::filesystem::path& path);
  // Its manifest, read without opening the library. Throws Error(plugin).
  static Manifest manifest_of(const std::filesystem::path& path);

  // False where this line was logged before, so that the same selection for another shape is not repeated.
  bool is_first_occurrence(const std::string& line);

  const RegistryOptions& options() const { return options_; }

 private:
  struct Entry {
    FoundPlugin plugin;
    std::function<fvlm_plugin_entry_function()> entry; // of a builtin
    bool tried = false;
    std::optional<Manifest> hidden; // of the bundled plugin of this name
  };
  void scan(const std::filesystem::path& directory, Origin origin);
  void scan_path();
  bool scan_folder(const std::filesystem::path& folder, Origin origin); // false: not a plugin's folder
  void add(Manifest manifest, Origin origin);
  void refuse(const std::string& name, const std::filesystem::path& where, const std::string& reason);
  const LoadedPlugin* open(Entry& entry);
  const LoadedPlugin* open_this(Entry& entry);
  std::string absence(const std::function<bool(const std::string& name)>& is_meant) const;
  const DevicesHere& devices();

  RegistryOptions options_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<Refusal> refusals_;
  std::set<std::string> logged_;
};

} // namespace fvlm
