// plugin.toml: the description of a plugin that is read before its library is opened.
#pragma once
#include "plugin/kinds.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

struct Manifest {
  std::filesystem::path file; // plugin.toml, in the library's folder; empty for a plugin linked into the engine
  std::string name;           // as recipes name it: lower-case letters, digits, '-', '_', '.'
  std::string version, description, license;
  std::string library; // a file name
  int abi_major = 0, abi_minor = 0;
  std::vector<KindName> kinds;            // those that this engine supports; never empty
  std::vector<std::string> unknown_kinds; // those of newer engines, which are ignored
  std::vector<std::string> devices;       // "cpu", "cuda"
  std::vector<std::string> architectures; // "sm_90a"; empty: any

  std::filesystem::path folder() const { return file.parent_path(); }
  std::filesystem::path library_path() const { return folder() / library; }
  bool on_device(std::string_view device) const;
};

// Throws Error(plugin) with file:line for an unknown key, a wrong type, and a missing key other than `architectures`.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& file);
Manifest read_manifest(const std::filesystem::path& file);

// The plugin's name in a manifest that may have errors elsewhere, for messages about it.
std::optional<std::string> name_in_manifest(const std::filesystem::path& file);

// The manifest of a plugin without plugin.toml, such as those linked into the engine. kinds: {"fvlm.attention/1", ...}
Manifest builtin_manifest(std::string name, std::string version, std::string description,
                          const std::vector<std::string>& kinds, std::vector<std::string> devices);

} // namespace fvlm
