// The lock file: the plugins that the user trusts, with the SHA-256 of their libraries. JSON, written by `plugin
// trust`.
#pragma once
#include <filesystem>
#include <map>
#include <string>

namespace fvlm {

class PluginLock {
 public:
  struct Entry {
    std::string sha256;
    std::string library; // the path when it was trusted, for information only
  };

  // XDG_CONFIG_HOME/fvlm-engine/plugins.lock, else ~/.config/fvlm-engine/plugins.lock.
  static std::filesystem::path default_path();

  PluginLock() = default;
  // Throws Error(plugin) when the file is missing or malformed.
  static PluginLock read(const std::filesystem::path& path);
  void write(const std::filesystem::path& path) const; // creates the folder

  void trust(const std::string& name, Entry entry) { entries_[name] = std::move(entry); }
  bool remove(const std::string& name) { return entries_.erase(name) > 0; }
  const std::map<std::string, Entry>& entries() const { return entries_; }

  // Throws Error(plugin) when the plugin is not listed or its library has another hash.
  void require(const std::string& name, const std::string& sha256, const std::filesystem::path& library) const;

 private:
  std::filesystem::path path_;
  std::map<std::string, Entry> entries_;
};

} // namespace fvlm
