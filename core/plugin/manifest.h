// plugin.toml: what a plugin says of itself before its library is opened.
#pragma once
#include "plugin/kinds.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

struct Manifest {
  std::filesystem::path file; // the plugin.toml; the library lies beside it. Empty for a plugin linked in
  std::string name;           // as recipes name it: lower-case letters, digits, '-', '_', '.'
  std::string version, description, license;
  std::string library; // a file name
  int abi_major = 0, abi_minor = 0;
  std::vector<KindName> kinds;            // those this engine knows; never empty
  std::vector<std::string> unknown_kinds; // of a later engine, perhaps: never asked for
  std::vector<std::string> devices;       // "cpu", "cuda"
  std::vector<std::string> architectures; // "sm_90a"; empty: any

  std::filesystem::path folder() const { return file.parent_path(); }
  std::filesystem::path library_path() const { return folder() / library; }
  bool on_device(std::string_view device) const;
};

// Every key is known, has its type and is there (architectures may be missing). Throws Error(plugin) with file:line.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& file);
Manifest read_manifest(const std::filesystem::path& file);

// The name in a manifest that has mistakes elsewhere, for messages about it.
std::optional<std::string> name_in_manifest(const std::filesystem::path& file);

// What a plugin linked into the engine has in a manifest's place. kinds: {"fvlm.attention/1", ...}
Manifest builtin_manifest(std::string name, std::string version, std::string description,
                          const std::vector<std::string>& kinds, std::vector<std::string> devices);

} // namespace fvlm
