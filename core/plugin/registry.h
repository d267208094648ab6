// Which plugins there are, where they were found, and why some are not used. Opens a library when a kind it promises is
// first asked for.
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

// Which devices libraries may be opened for.
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
  std::optional<DevicesHere> devices; // empty: asked of the machine when a plugin first needs it
  LoadOptions load;

  // FVLM_PLUGIN_PATH, the program's lib/fvlm/plugins with the build's notes of them, and the user's lock file where it
  // exists.
  static RegistryOptions from_environment();
};

struct Refusal {
  std::string name;            // of the plugin; its folder's name where the manifest is not readable
  std::filesystem::path where; // folder, library or path entry
  std::string reason;
};

// A plugin that was found, by its manifest. `loaded` once its library was opened.
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

  // The engine's own: comes last in the search order, and its name is reserved. `entry` is asked for when the plugin is
  // first used, so that naming it costs nothing.
  void add_static(Manifest manifest, std::function<fvlm_plugin_entry_function()> entry);

  // Everything found, in search order; no library is opened by it. A plugin named like a bundled one hides that, unless
  // it was opened and turned out to be broken.
  std::vector<FoundPlugin> found() const;
  // What was refused so far: folders, path entries, manifests, second plugins of a name, libraries.
  std::vector<Refusal> refusals() const;

  // Opens the library if need be. Null: not there or refused; `reason` then says why.
  const LoadedPlugin* load(const std::string& name, std::string* reason = nullptr);
  void load_all();

  // Why there is no plugin that `is_meant` by its name: what is known of one that was refused, or else of places that
  // could not be searched.
  std::string why_absent(const std::function<bool(const std::string& name)>& is_meant) const;

  // The plugins that promise this kind, in search order, unopened but for those that hide a bundled one.
  std::vector<FoundPlugin> promising(const KindName& kind);

  // All usable tables of a kind, in search order; opens those libraries.
  template <class Table>
  std::vector<Candidate<Table>> candidates(std::string_view variant = {}) {
    KindName kind{std::string(KindOf<Table>::family), std::string(variant)};
    std::vector<Candidate<Table>> all;
    for (const FoundPlugin& plugin : promising(kind))
      if (const LoadedPlugin* loaded = load(plugin.manifest.name))
        if (const Table* table = loaded->table<Table>(variant)) all.push_back({loaded, table});
    return all;
  }

  // One plugin by its library, its plugin.toml or its folder, wherever it lies. Not added. Throws Error(plugin).
  const LoadedPlugin& load_file(const std::filesystem::path& path);
  // Its manifest, read without opening the library. Throws Error(plugin).
  static Manifest manifest_of(const std::filesystem::path& path);

  // Whether this line is new to the log: the same choice for the next shape is not told again.
  bool is_news(const std::string& line);

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
  bool scan_folder(const std::filesystem::path& folder, Origin origin); // false: it is no plugin's
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
  std::set<std::string> told_;
};

} // namespace fvlm
