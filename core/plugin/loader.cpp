#include "plugin/loader.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "plugin/active_call.h"
#include "plugin/adopt.h"
#include "plugin/elf.h"
#include "plugin/probe.h"
#include "plugin/untrusted.h"

#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>
#include <fmt/format.h>

#include <deque>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <map>
#include <mutex>

namespace fvlm {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void refuse(const fs::path& library, std::string what, std::string advice) {
  throw Error(ErrorKind::plugin, std::move(what)).at(library.string()).advise(std::move(advice));
}

// The dynamic linker's message, without Boost's prefix and without the path, which the error contains anyway.
std::string linker_text(const std::string& text, const fs::path& library) {
  constexpr std::string_view before = "(dlerror system message: ";
  size_t begin = text.find(before);
  if (begin == std::string::npos) return printable(text);
  std::string words = text.substr(begin + before.size());
  if (size_t end = words.rfind(')'); end != std::string::npos) words.resize(end);
  std::string prefix = library.string() + ": ";
  return printable(words.starts_with(prefix) ? words.substr(prefix.size()) : words);
}

std::string linker_advice(const std::string& words) {
  if (words.find("cannot open shared object file") != std::string::npos)
    return "`ldd` shows its dependencies; put the missing one next to the library and link with -Wl,-rpath,'$ORIGIN', "
           "or install it";
  if (words.find("undefined symbol") != std::string::npos)
    return "link it with all its dependencies (-Wl,-z,defs reports this at build time)";
  return "rebuild the library on this machine";
}

// Libraries are never closed, and the dynamic linker returns the library that is loaded already for a new file of the
// same name. So a name whose file has changed is refused. `file`: `path`, or the private copy of it.
boost::dll::shared_library& open_library(const fs::path& path, const fs::path& file, const FileIdentity& identity) {
  struct Opened {
    boost::dll::shared_library library;
    FileIdentity identity;
  };
  static std::mutex mutex;
  static auto& all = *new std::map<fs::path, Opened>;
  std::lock_guard lock(mutex);
  if (auto found = all.find(path); found != all.end()) {
    if (found->second.identity == identity) return found->second.library;
    refuse(path, "another library of this name is already loaded", "restart the engine");
  }
  try {
    using boost::dll::load_mode::rtld_local;
    using boost::dll::load_mode::rtld_now;
    boost::dll::shared_library library(file, rtld_now | rtld_local);
    return all.emplace(path, Opened{std::move(library), identity}).first->second.library;
  } catch (const boost::dll::fs::system_error& error) {
    std::string words = linker_text(error.what(), file);
    refuse(path, "it cannot be loaded: " + words, linker_advice(words));
  } catch (...) {
    refuse(path, "its constructors threw " + current_exception_text(), "a plugin throws nothing across the boundary");
  }
}

fvlm_plugin_entry_function find_entry(boost::dll::shared_library& library, const fs::path& path) {
  const std::string advice = fmt::format("define it with FVLM_EXPORT and, in C++, inside extern \"C\"");
  void* address = dlsym(library.native(), FVLM_PLUGIN_ENTRY);
  if (!address) refuse(path, fmt::format("it exports no symbol {}", FVLM_PLUGIN_ENTRY), advice);
  Dl_info where{};
  void* extra = nullptr;
  link_map* map = nullptr;
  if (dladdr1(address, &where, &extra, RTLD_DL_SYMENT) == 0 || !extra)
    refuse(path, fmt::format("{} is not part of a library", FVLM_PLUGIN_ENTRY), advice);
  if (ELF64_ST_TYPE(static_cast<const ElfW(Sym)*>(extra)->st_info) == STT_OBJECT)
    refuse(path, fmt::format("{} is data, not a function", FVLM_PLUGIN_ENTRY), advice);
  Dl_info own{};
  if (dlinfo(library.native(), RTLD_DI_LINKMAP, &map) == 0 && dladdr(map->l_ld, &own) != 0 &&
      own.dli_fbase != where.dli_fbase)
    refuse(path, fmt::format("it exports no {} of its own: the one found is in {}", FVLM_PLUGIN_ENTRY, where.dli_fname),
           advice);
  return reinterpret_cast<fvlm_plugin_entry_function>(address);
}

LoadedPlugin open(const Manifest& manifest, const fs::path& library, const fs::path& file, const FileIdentity& identity,
                  Origin origin, const StepNotice& notice) {
  if (notice) notice("its constructors");
  boost::dll::shared_library& opened = open_library(library, file, identity);
  LoadedPlugin plugin = adopt(find_entry(opened, library), manifest, library.string(), notice);
  plugin.library = library;
  plugin.origin = origin;
  return plugin;
}

// Stores the plugin for the rest of the process.
const LoadedPlugin& keep(LoadedPlugin plugin) {
  static std::mutex mutex;
  static auto& all = *new std::deque<LoadedPlugin>;
  std::lock_guard lock(mutex);
  return all.emplace_back(std::move(plugin));
}

} // namespace

std::string_view origin_name(Origin origin) {
  switch (origin) {
  case Origin::builtin:
    return "built in";
  case Origin::bundled:
    return "bundled";
  case Origin::installed:
    return "installed";
  case Origin::directory:
    return "--plugin-dir";
  case Origin::path:
    return "FVLM_PLUGIN_PATH";
  case Origin::file:
    return "named";
  }
  return "";
}

const PluginTable* LoadedPlugin::find(const KindName& kind) const {
  for (const PluginTable& table : tables)
    if (table.kind == kind) return &table;
  return nullptr;
}

const LoadedPlugin& open_plugin(const Manifest& manifest, const fs::path& library, Origin origin,
                                const StepNotice& notice) {
  return keep(open(manifest, library, library, OpenedFile(library).identity(), origin, notice));
}

const LoadedPlugin& open_bare_library(const fs::path& library, const std::string& device, const StepNotice& notice) {
  if (notice) notice("its constructors");
  const auto entry = find_entry(open_library(library, library, OpenedFile(library).identity()), library);
  const auto manifest = manifest_by_itself(entry, kinds_to_ask(read_file(library)), device, library.string(), notice);
  return keep(adopt(entry, manifest, library.string(), notice));
}

const LoadedPlugin& load_static_plugin(fvlm_plugin_entry_function entry, const Manifest& manifest) {
  LoadedPlugin plugin = adopt(entry, manifest, manifest.name, {});
  plugin.origin = Origin::builtin;
  return keep(std::move(plugin));
}

fs::path check_plugin_files(const Manifest& manifest, const TrustPolicy& policy) {
  check_trusted_folder(manifest.folder(), policy);
  check_trusted(manifest.file, policy);
  fs::path library = check_trusted(manifest.library_path(), policy);
  check_trusted_folder(library.parent_path(), policy);
  return library;
}

BundledHashes read_bundled_hashes(const fs::path& folder, const TrustPolicy& policy) {
  BundledHashes hashes;
  TrustPolicy trust = policy;
  trust.also_owner_of = "/proc/self/exe";
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    if (entry->path().extension() != ".sha256") continue;
    try {
      hashes[entry->path().stem()] = trimmed(OpenedFile(check_trusted(entry->path(), trust)).read(0, 128));
    } catch (const Error& error) {
      log_warning("{}: {}; its plugin is treated as not bundled", error.where(), error.what());
    }
  }
  return hashes;
}

const LoadedPlugin& load_plugin(const Manifest& manifest, Origin origin, const LoadOptions& options) {
  TrustPolicy trust = options.trust;
  if (origin == Origin::bundled || origin == Origin::installed) trust.also_owner_of = "/proc/self/exe";
  fs::path library = check_plugin_files(manifest, trust);
  OpenedFile file(library);
  std::string sha256;
  if (origin == Origin::bundled) {
    sha256 = file.sha256();
    const auto noted = options.bundled.find(manifest.name);
    if (noted == options.bundled.end() || noted->second != sha256) origin = Origin::installed;
  }
  if (options.bundled_only && origin != Origin::bundled)
    refuse(library, "it is not one of the program's bundled plugins, and --bundled-only is set",
           "load it without --bundled-only, or reinstall the program");
  if (options.lock && origin != Origin::bundled) file.make_private();
  check_elf(file);
  if (origin != Origin::bundled) {
    sha256 = options.lock ? file.sha256() : cached_sha256(file, options.probe);
    if (options.lock) options.lock->require(manifest.name, sha256, library);
    probe_library(manifest, file, sha256, options.probe);
  }
  file.verify_unchanged();
  install_crash_handlers();
  LoadedPlugin plugin = [&] {
    const ActiveCall mark(manifest.name, "its constructors or its entry point");
    return open(manifest, library, file.content(), file.identity(), origin, {});
  }();
  file.verify_unchanged();
  plugin.sha256 = sha256;
  identify_plugin(plugin.name(), sha256);
  return keep(std::move(plugin));
}

} // namespace fvlm
